#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

#include "quant/grid.h"

namespace horizon::ops {

/// How a range follows the batches. Values are part of op schemas: never renumber.
enum class Observer : int64_t {
  kMovingAverage = 0,  ///< r + c (x - r); the first batch sets the range
  kMinMax = 1,         ///< the extremes of everything seen
  kFixed = 2,          ///< never moves
};

/// The quantizer of an output: the arguments Q of the operators. All five tensors are given
/// (`min_val`, `max_val`, `scale` fp32; `observed` int64; `zero_point` int32, in the grid's own
/// terms; one element each) or none, which means that the output is not quantized.
struct QuantizerArgs {
  std::optional<at::Tensor> min_val, max_val, observed, scale, zero_point;
  int64_t preset = 0;
  int64_t observer = 0;
  double averaging_constant = 0.01;
  bool observe = false;
  bool fake_quantize = false;
  bool skip_nonfinite = false;

  bool defined() const { return min_val.has_value() && min_val->defined(); }
  /// Whether this call moves the range, given a non-empty batch.
  bool observes() const { return defined() && observe && observer != 2; }
  /// Whether this call returns values on a grid.
  bool quantizes() const { return defined() && fake_quantize; }
  quant::Preset grid() const { return static_cast<quant::Preset>(preset); }
};

/// The grid of a quantizer, as read from its tensors.
struct GridValues {
  float scale;
  int32_t zero_point;         ///< in the grid's own terms
  int32_t stored_zero_point;  ///< as codes are stored (uint8)
  int32_t quant_min, quant_max;
};

/// Checks dtypes, shapes, devices and numbers of a quantizer, no tensor values (so on any device
/// and on Meta). `reference` is the tensor to be quantized.
void check_quantizer(const char* op, const QuantizerArgs& q, const at::Tensor& reference);

/// Moves the range by one batch with the extremes [lo, hi], then scale and zero point, in place;
/// CPU. Extremes are rounded to fp32 first. NaN in either means that the batch held NaN. Call it
/// only for non-empty batches and only if `q.observes()`. A batch that is not finite changes
/// nothing: ValueError "observe: 'ARGUMENT' must be finite, got nan", or one warning with
/// `skip_nonfinite`.
void observe_range(const QuantizerArgs& q, double lo, double hi, const char* argument = "x");

/// The current grid; CPU. ValueError if the scale is not finite and positive or the zero point is
/// not on the grid.
GridValues read_grid(const char* op, const QuantizerArgs& q);

/// What operators return beside the output: fresh 0-d tensors, scale fp32 and stored zero point
/// int32, of the grid that quantized it; CPU.
std::tuple<at::Tensor, at::Tensor> returned_qparams(const GridValues& grid);

/// What operators return for an output that is not quantized: two empty tensors (fp32, int32).
std::tuple<at::Tensor, at::Tensor> empty_qparams(const at::Tensor& like);

/// Shapes of what is returned, for Meta kernels: 0-d if `q.quantizes()`, else empty.
std::tuple<at::Tensor, at::Tensor> meta_qparams(const QuantizerArgs& q, const at::Tensor& like);

}  // namespace horizon::ops
