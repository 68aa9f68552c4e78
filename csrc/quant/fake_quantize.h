#pragma once

#include <cmath>
#include <cstdint>

#include "quant/macros.h"

namespace horizon::quant {

/// rint(x / s) + z as a real number, before saturation; half to even. `inv_scale` is 1 / s, rounded
/// to T; multiplying by it (not dividing) is what torch.fake_quantize does.
template <typename T>
HORIZON_HD T to_grid(T x, T inv_scale, T zero_point) {
  return std::nearbyint(x * inv_scale) + zero_point;
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

/// (q(x) - z) * s.
template <typename T>
HORIZON_HD T fake_quantize(T x, T scale, T inv_scale, T zero_point, T lo, T hi) {
  return (quantize_to_real(x, inv_scale, zero_point, lo, hi) - zero_point) * scale;
}

/// Whether the straight-through gradient passes: inside the range, ends included; not for NaN.
template <typename T>
HORIZON_HD bool passes_gradient(T x, T inv_scale, T zero_point, T lo, T hi) {
  const T q = to_grid(x, inv_scale, zero_point);
  return q >= lo && q <= hi;
}

}  // namespace horizon::quant
