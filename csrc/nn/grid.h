#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <string>

namespace horizon::nn {

/// What a tensor between two quantized modules holds.
enum class GridKind {
  kGrid,           ///< floats on a grid
  kCodes,          ///< uint8 codes
  kHighPrecision,  ///< the float output of a quantized layer without an output quantizer
  kOff,            ///< floats of a layer whose fake-quant is off
};

/// The grid of a tensor, as the module that made it knows it.
///
/// It is attached to the tensor itself (c10::BackendMeta), so that it reaches the consumer through
/// any C++ control flow; the result of another op has none.
struct Grid : c10::BackendMeta {
  GridKind kind = GridKind::kGrid;
  /// fp32 and int32 (stored), 0-d: what quantized this very tensor. Undefined for the last two
  /// kinds.
  at::Tensor scale, zero_point;
  /// The tensor's in-place counter then; -1 where there is none (inference mode).
  int64_t version = -1;
  /// The path of the module that made the tensor.
  std::string producer;
};

/// The in-place counter of `x`, or -1.
int64_t version_of(const at::Tensor& x);

/// Attaches a grid to `x`, which must be a tensor of the caller's own, and returns it.
at::Tensor with_grid(at::Tensor x, GridKind kind, const std::string& producer,
                     const at::Tensor& scale = {}, const at::Tensor& zero_point = {});

/// The grid of `x`, or nullptr. Valid as long as `x` is.
const Grid* grid_of(const at::Tensor& x);

/// The grid of an operand of the prepared (`codes` false) or converted stage.
///
/// Throws ValueError naming `path` and `operand` with a remedy: no grid, the grid of the other
/// stage, a high-precision result, or a tensor changed in place since. In the prepared stage a
/// tensor of kind kOff passes.
const Grid& operand_grid(const at::Tensor& x, const std::string& path, const char* operand,
                         bool codes);

}  // namespace horizon::nn
