#pragma once

#include <cstdint>

#include "quant/macros.h"
#include "quant/rounding.h"

namespace horizon::quant {

/// rint(x / s) + z as a real number, before saturation; half to even. `inv_scale` is 1 / s in fp32,
/// for every T; multiplying by it (not dividing) is what torch.fake_quantize does.
template <typename T>
HORIZON_HD T to_grid(T x, T inv_scale, T zero_point) {
  return round_half_even(x * inv_scale) + zero_point;
}

/// Saturates; NaN stays NaN because both comparisons are false for it.
template <typename T>
HORIZON_HD T saturate(T q, T lo, T hi) {
  q = q < lo ? lo : q;
  return q > hi ? hi : q;
}

/// clamp(rint(x / s) + z, lo, hi) as a real number. +inf gives hi, -inf lo, NaN NaN.
template <typename T>
HORIZON_HD T quantize_to_real(T x, T inv_scale, T zero_point, T lo, T hi) {
  return saturate(to_grid(x, inv_scale, zero_point), lo, hi);
}

/// (q(x) - z) * s. Every step but the last is exact if |z|, |lo| and |hi| are at most
/// `kNarrowGrid` or T is double; `fake_quantize_wide` serves the rest.
template <typename T>
HORIZON_HD T fake_quantize(T x, T scale, T inv_scale, T zero_point, T lo, T hi) {
  return (quantize_to_real(x, inv_scale, zero_point, lo, hi) - zero_point) * scale;
}

/// The largest zero point and code for which fp32 holds every q, q - z and z + rint(x / s) that
/// does not saturate.
inline constexpr int32_t kNarrowGrid = 1 << 22;

/// The fp32 formula for grids of any int32 range: the position on the grid is rounded to fp32,
/// codes are saturated in double. `Product` is what (q - z) * s is computed in before the result is
/// rounded to fp32; it matters beyond 2^24 only, where torch's per-tensor op (float) and
/// per-channel op (double) part.
template <typename Product>
HORIZON_HD float fake_quantize_wide(float x, float scale, float inv_scale, float zero_point,
                                    double exact_zero_point, double lo, double hi) {
  const double q = saturate(static_cast<double>(to_grid(x, inv_scale, zero_point)), lo, hi);
  const auto steps = static_cast<Product>(q - exact_zero_point);
  return static_cast<float>(steps * static_cast<Product>(scale));
}

/// Whether the straight-through gradient passes: inside the range, ends included; not for NaN.
/// `Limit` may be wider than T, for ends that T does not hold.
template <typename T, typename Limit>
HORIZON_HD bool passes_gradient(T x, T inv_scale, T zero_point, Limit lo, Limit hi) {
  const T q = to_grid(x, inv_scale, zero_point);
  return q >= lo && q <= hi;
}

/// (q - z) * s.
template <typename T>
HORIZON_HD T dequantize(int32_t centred_code, T scale) {
  return static_cast<T>(centred_code) * scale;
}

}  // namespace horizon::quant
