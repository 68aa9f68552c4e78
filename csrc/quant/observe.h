#pragma once

#include <cstdint>

#include "quant/qparams.h"

namespace horizon::quant {

/// A quantizer's state, by reference: `scale` and `zero_point` follow from the range.
struct ObserverState {
  float* min_val;
  float* max_val;
  int64_t* observed;  ///< batches so far
  float* scale;
  int32_t* zero_point;  ///< in the grid's own terms
};

/// Whether extremes may enter a range: neither is NaN or infinite.
HORIZON_HD bool is_finite_range(float lo, float hi) { return lo - lo == 0.0F && hi - hi == 0.0F; }

/// Moves a range by one batch with the finite extremes [lo, hi], then scale and zero point. The
/// first batch sets the range; later ones widen it (`extremes`) or enter with weight c.
HORIZON_HD void move_range(const ObserverState& state, float lo, float hi, bool extremes, float c,
                           Preset preset) {
  float low = lo, high = hi;
  if (*state.observed != 0) {
    if (extremes) {
      low = lo < *state.min_val ? lo : *state.min_val;
      high = hi > *state.max_val ? hi : *state.max_val;
    } else {
      low = moving_average(*state.min_val, lo, c);
      high = moving_average(*state.max_val, hi, c);
    }
  }
  *state.min_val = low;
  *state.max_val = high;
  ++*state.observed;
  const QParams params = choose_qparams(low, high, preset);
  *state.scale = params.scale;
  *state.zero_point = params.zero_point;
}

}  // namespace horizon::quant
