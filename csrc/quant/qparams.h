#pragma once

#include <cmath>
#include <cstdint>

#include "quant/grid.h"
#include "quant/rounding.h"

namespace horizon::quant {

struct QParams {
  float scale;
  int32_t zero_point;  ///< in the grid's own terms, not as stored
};

/// Scale and zero point of an activation range [lo, hi], both finite. Zero is put into the range.
HORIZON_HD QParams choose_qparams(float lo, float hi, Preset preset) {
  lo = lo < 0.0F ? lo : 0.0F;
  hi = hi > 0.0F ? hi : 0.0F;
  if (is_symmetric(preset)) {
    const float peak = -lo > hi ? -lo : hi;
    float scale = peak / (preset == Preset::kHorizon ? 127.5F : 127.0F);
    scale = scale > kMinScale ? scale : kMinScale;
    return {scale, 0};
  }
  // In double: hi - lo may exceed the range of fp32.
  double width = (static_cast<double>(hi) - static_cast<double>(lo)) / 255.0;
  float scale = static_cast<float>(width);
  scale = scale > kMinScale ? scale : kMinScale;
  const float z = round_half_even(-lo / scale);
  const int32_t zero_point = z < 0.0F ? 0 : (z > 255.0F ? 255 : static_cast<int32_t>(z));
  return {scale, zero_point};
}

/// Scale of a weight channel from its largest magnitude; NaN and infinity are passed on, so that a
/// diverged channel shows.
HORIZON_HD float weight_scale(float max_abs) {
  const float scale = max_abs / 127.0F;
  return scale < kMinScale ? kMinScale : scale;
}

/// One step of the moving average, r + c (x - r), with one rounding of the sum. Finite for finite
/// arguments and c in [0, 1]: where x - r overflows, it is taken in double.
HORIZON_HD float moving_average(float r, float x, float c) {
  const float step = x - r;
  if (step - step == 0.0F) return std::fma(c, step, r);
  const double wide = static_cast<double>(x) - static_cast<double>(r);
  return static_cast<float>(static_cast<double>(r) + static_cast<double>(c) * wide);
}

}  // namespace horizon::quant
