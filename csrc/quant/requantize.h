#pragma once

#include <cmath>
#include <cstdint>

#include "quant/grid.h"
#include "quant/macros.h"

namespace horizon::quant {

/// The activation at the end of a fused group. Values are part of op schemas: never renumber.
enum class Activation : int32_t { kNone = 0, kRelu = 1, kRelu6 = 2 };

/// M = ((s_x * s_w) * a) / s_y in separate double operations, stored fp32.
HORIZON_HD float requantize_multiplier(double x_scale, double w_scale, double factor,
                                       double y_scale) {
  return static_cast<float>(((x_scale * w_scale) * factor) / y_scale);
}

/// B = (bias * a + b) / s_y; `bias_after_bn` is bias * a + b in double.
HORIZON_HD float requantize_offset(double bias_after_bn, double y_scale) {
  return static_cast<float>(bias_after_bn / y_scale);
}

/// Steps 2 and 3 without the skip: two roundings, no fma.
HORIZON_HD float scale_accumulator(int32_t acc, float multiplier, float offset) {
  const float v = static_cast<float>(acc) * multiplier;
  return v + offset;
}

/// Step 3: the skip's centred code enters with one rounding.
HORIZON_HD float add_skip(float v, int32_t centred_code, float ratio) {
  return std::fma(static_cast<float>(centred_code), ratio, v);
}

/// Step 4. `six` is 6 / s_y on codes and 6 on real numbers.
template <typename T>
HORIZON_HD T activate(T v, Activation act, T six) {
  if (act != Activation::kNone) v = v < T(0) ? T(0) : v;
  if (act == Activation::kRelu6) v = v > six ? six : v;
  return v;
}

/// Step 5: saturate(rint(v + z)), the sum rounded to fp32 first. v is never NaN (packing refuses
/// non-finite multipliers).
HORIZON_HD uint8_t to_code(float v, float stored_zero_point) {
  float q = std::nearbyint(v + stored_zero_point);
  q = q < 0.0F ? 0.0F : q;
  q = q > 255.0F ? 255.0F : q;
  return static_cast<uint8_t>(q);
}

}  // namespace horizon::quant
