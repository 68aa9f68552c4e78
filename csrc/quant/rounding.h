#pragma once

#include <cmath>

#include "quant/macros.h"

namespace horizon::quant {

/// rint in the default rounding mode: to the nearest integer, half to even. Infinities, NaN and the
/// sign of zero are kept.
///
/// x86 without SSE4.1 has no rounding instruction and std::nearbyint is a call there. Adding and
/// subtracting 2^(mantissa bits) rounds every smaller magnitude the same way; larger ones are
/// integers already.
HORIZON_HD float round_half_even(float x) {
#if defined(__x86_64__) && !defined(__SSE4_1__) && !defined(__CUDA_ARCH__)
  const float magnitude = __builtin_fabsf(x);
  const float rounded = (magnitude + 8388608.0F) - 8388608.0F;
  return __builtin_copysignf(magnitude < 8388608.0F ? rounded : magnitude, x);
#else
  return std::nearbyint(x);
#endif
}

HORIZON_HD double round_half_even(double x) {
#if defined(__x86_64__) && !defined(__SSE4_1__) && !defined(__CUDA_ARCH__)
  const double magnitude = __builtin_fabs(x);
  const double rounded = (magnitude + 4503599627370496.0) - 4503599627370496.0;
  return __builtin_copysign(magnitude < 4503599627370496.0 ? rounded : magnitude, x);
#else
  return std::nearbyint(x);
#endif
}

}  // namespace horizon::quant
