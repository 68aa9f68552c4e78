#pragma once

#include <ATen/core/Tensor.h>

namespace horizon::ops {

/// What a weight belongs to, which fixes its shape. Values are part of op schemas: never renumber.
enum class Base : int64_t {
  kConv2d = 0,           ///< [out, in / groups, kh, kw]
  kConvTranspose2d = 1,  ///< [in, out / groups, kh, kw]
  kLinear = 2,           ///< [out, in]
};

/// Checks dtype, base, groups and shape of a weight; returns the number of output channels.
c10::SymInt check_weight(const char* op, const at::Tensor& weight, int64_t base, int64_t groups);

/// Checks the arguments of `quantize_weight`, without tensor values.
void check_quantize_weight(const at::Tensor& weight, const at::Tensor& scale, int64_t base,
                           int64_t groups);

/// max|w| / 127 of each output channel, at least 2^-23: float32 [out_channels].
///
/// weight: float32, float64, float16 or bfloat16, any layout. Channel c of group g is entry
/// g * (out / groups) + c for every base. A channel that is not finite has a scale that is not.
/// No gradient.
at::Tensor weight_scale(const at::Tensor& weight, int64_t base, int64_t groups);

/// int8 codes in [-127, 127], in the weight's shape and layout, for scale float [out_channels].
/// ValueError if the weight holds NaN. No gradient.
at::Tensor quantize_weight(const at::Tensor& weight, const at::Tensor& scale, int64_t base,
                           int64_t groups);

/// code * scale with `weight_scale` and `quantize_weight`, in the weight's dtype and layout. The
/// gradient is the identity, since abs-max scales never clip. NaN and infinities turn their channel
/// into NaN.
at::Tensor fake_quantize_weight(const at::Tensor& weight, int64_t base, int64_t groups);

}  // namespace horizon::ops
