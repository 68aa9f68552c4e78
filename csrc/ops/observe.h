#pragma once

#include <ATen/core/Tensor.h>

namespace horizon::ops {

/// Moves the range of a quantizer by one batch, then its scale and zero point, in place.
///
/// x: any float dtype, shape and layout. min_val, max_val, scale: float32; observed: int64;
/// zero_point: int32; one element each. preset, observer: quant/grid.h, ops/quantizer.h. An empty
/// batch changes nothing; one that is not finite is a ValueError, or with `skip_nonfinite` one
/// warning.
void observe_(const at::Tensor& x, const at::Tensor& min_val, const at::Tensor& max_val,
              const at::Tensor& observed, const at::Tensor& scale, const at::Tensor& zero_point,
              int64_t preset, int64_t observer, double averaging_constant, bool skip_nonfinite);

}  // namespace horizon::ops
