#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "quant/grid.h"
#include "quant/macros.h"

namespace horizon::quant {

/// The activation at the end of a fused group. Values are part of op schemas: never renumber.
enum class Activation : int32_t { kNone = 0, kRelu = 1, kRelu6 = 2 };

inline constexpr int32_t kActivationCount = 3;

/// M = ((s_x * s_w) * a) / s_y in separate double operations, stored fp32. With y_scale = 1 it is
/// the multiplier of a result without an output quantizer.
HORIZON_HD float requantize_multiplier(double x_scale, double w_scale, double factor,
                                       double y_scale) {
  return static_cast<float>(((x_scale * w_scale) * factor) / y_scale);
}

/// B = (bias * a + b) / s_y; `bias_after_bn` is bias * a + b in double.
HORIZON_HD float requantize_offset(double bias_after_bn, double y_scale) {
  return static_cast<float>(bias_after_bn / y_scale);
}

/// s / s_y: the skip's ratio R, and the multiplier of add, cat and requantization.
HORIZON_HD float scale_ratio(double scale, double y_scale) {
  return static_cast<float>(scale / y_scale);
}

/// (s_a * s_b) / s_y: the multiplier of a product of codes. With `factor` as s_b: that of an affine
/// map of codes.
HORIZON_HD float product_multiplier(double a_scale, double b_scale, double y_scale) {
  return static_cast<float>((a_scale * b_scale) / y_scale);
}

/// s / (s_y * n): the multiplier of a sum of codes that is averaged over n.
HORIZON_HD float average_multiplier(double scale, double y_scale, double count) {
  return static_cast<float>(scale / (y_scale * count));
}

/// ReLU6's bound on codes, 6 / s_y.
HORIZON_HD float six_on_grid(double y_scale) { return static_cast<float>(6.0 / y_scale); }

/// Steps 2 and 3 without the skip: two roundings, no fma. T is float or a kernel's vector of
/// floats.
template <typename T>
HORIZON_HD T scale_value(T acc, T multiplier, T offset) {
  const T v = acc * multiplier;
  return v + offset;
}

HORIZON_HD float scale_accumulator(int32_t acc, float multiplier, float offset) {
  return scale_value(static_cast<float>(acc), multiplier, offset);
}

/// Step 3: the skip's centred code enters with one rounding. Vectors bring their own fma.
template <typename T>
HORIZON_HD T add_scaled(T v, T centred_code, T ratio) {
  using std::fma;
  return fma(centred_code, ratio, v);
}

HORIZON_HD float add_skip(float v, int32_t centred_code, float ratio) {
  return add_scaled(v, static_cast<float>(centred_code), ratio);
}

/// A sum of two tensors of codes: the second is rounded, the first enters with one rounding.
template <typename T>
HORIZON_HD T add_codes(T centred_a, T ratio_a, T centred_b, T ratio_b) {
  return add_scaled(centred_b * ratio_b, centred_a, ratio_a);
}

/// A product of two tensors of codes: the product is exact.
template <typename T>
HORIZON_HD T multiply_codes(T centred_a, T centred_b, T ratio) {
  return centred_a * centred_b * ratio;
}

/// Step 4. `six` is 6 / s_y on codes and 6 on real numbers.
template <typename T>
HORIZON_HD T activate(T v, Activation act, T six) {
  if (act != Activation::kNone) v = v < T(0) ? T(0) : v;
  if (act == Activation::kRelu6) v = v > six ? six : v;
  return v;
}

/// Step 5: saturate(rint(v + z)), the sum rounded to fp32 first. v is never NaN (packing refuses
/// non-finite multipliers). The code is in the low byte of the result.
///
/// The ends of the range are integers, so saturating before rounding gives the same code, and a
/// number in [0, 255] is rounded, half to even, by adding 1.5 * 2^23: that leaves the code in the
/// low bits of the sum. No instruction set needs a rounding instruction or a conversion for it.
HORIZON_HD uint32_t to_code_bits(float v, float stored_zero_point) {
  float q = v + stored_zero_point;
  q = q > 0.0F ? q : 0.0F;
  q = q < 255.0F ? q : 255.0F;
  const float shifted = q + 12582912.0F;
  uint32_t bits = 0;
  std::memcpy(&bits, &shifted, sizeof bits);
  return bits;
}

HORIZON_HD uint8_t to_code(float v, float stored_zero_point) {
  return static_cast<uint8_t>(to_code_bits(v, stored_zero_point));
}

/// Where steps 4 and 5 saturate v + z: they are monotone, so an activation moves the ends of the
/// codes instead of v. Between the ends the code is rint(v + z).
struct CodeEnds {
  float low, high;
};

/// `six` is 6 / s_y; the stored zero point lies in [0, 255].
HORIZON_HD CodeEnds code_ends(Activation act, float six, float stored_zero_point) {
  const float bound = six + stored_zero_point;
  return {act == Activation::kNone ? 0.0F : stored_zero_point,
          act == Activation::kRelu6 && bound < 255.0F ? bound : 255.0F};
}

}  // namespace horizon::quant
