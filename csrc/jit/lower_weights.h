#pragma once

#include <ATen/core/Tensor.h>

namespace horizon::jit {

/// A weight as codes.
struct WeightCodes {
  at::Tensor scale;  ///< float32 [out_channels]
  at::Tensor codes;  ///< int8, in the weight's shape
};

/// The codes of a constant weight.
///
/// Channels that were fake-quantized keep their grid: where all values of a channel are multiples,
/// from -128 to 127, of one step, that step is the scale and the codes are exact. Others have
/// ops::weight_scale, and so have those that lie on its grid. `base` and `groups` as there.
WeightCodes weight_codes(const at::Tensor& weight, int64_t base, int64_t groups);

}  // namespace horizon::jit
