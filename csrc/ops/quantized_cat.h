#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace horizon::ops {

/// Concatenates codes along `dim` (negative allowed) on one grid; an operand that lies on it
/// already is copied unchanged.
///
/// `q`: at least one tensor of uint8 codes, shaped alike but for `dim`; `scales`, `zero_points`:
/// one 0-d tensor for each; `scale`, `zero_point`: the result's. Zero points are stored ones
/// (0..255). The result is channels_last where the operands are. Raises ValueError or TypeError for
/// arguments that break these rules.
at::Tensor quantized_cat(at::TensorList q, at::TensorList scales, at::TensorList zero_points,
                         int64_t dim, const at::Tensor& scale, const at::Tensor& zero_point);

struct QuantizedCatShape {
  int64_t dim;  ///< from the front
  c10::SymDimVector sizes;
  at::MemoryFormat format;
};

/// The concatenated dimension among the others, in the order of memory: `outer` rows, whose entries
/// are blocks of `inner` codes.
struct ConcatRows {
  int64_t outer = 1, inner = 1;

  ConcatRows(at::IntArrayRef sizes, int64_t dim, at::MemoryFormat format);
};

/// Checks everything but the values of tensors; for the backends.
QuantizedCatShape check_quantized_cat(at::TensorList q, at::TensorList scales,
                                      at::TensorList zero_points, int64_t dim,
                                      const at::Tensor& scale, const at::Tensor& zero_point);

}  // namespace horizon::ops
