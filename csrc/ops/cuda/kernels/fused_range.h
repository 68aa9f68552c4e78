#pragma once

#include <cstdint>

#include "ops/cuda/kernels/fused_elements.h"
#include "ops/cuda/launch.h"
#include "quant/observe.h"

namespace horizon::ops::cuda {

/// A grid on the device in the compute type; `zero_point`, `lo`, `hi` in the grid's own terms.
template <typename T>
struct DeviceGrid {
  T scale, inv_scale, zero_point, lo, hi;
};

/// The extremes that the threads of a block found, merged over three phases.
template <typename T>
struct BlockExtremes {
  static constexpr uint32_t kThreads = 256;
  static constexpr uint32_t kHeads = 16;

  T lo[kThreads], hi[kThreads];

  /// Of one thread.
  HORIZON_HD void put(uint32_t index, T low, T high) {
    lo[index] = low;
    hi[index] = high;
  }
  /// By the first kHeads threads, in the next phase.
  HORIZON_HD void merge_threads(uint32_t index) {
    if (index < kHeads) merge(index, kThreads, kHeads);
  }
  /// By the first thread, in the last phase; entry 0 is the result.
  HORIZON_HD void merge_heads() { merge(0, kHeads, 1); }

 private:
  HORIZON_HD void merge(uint32_t at, uint32_t until, uint32_t step) {
    for (uint32_t i = at + step; i < until; i += step) {
      lo[at] = lower_of(lo[at], lo[i]);
      hi[at] = higher_of(hi[at], hi[i]);
    }
  }
};

/// The end of a group's statistics, on one block: extremes move the range, the range gives the
/// grid. Extremes that are not finite change nothing.
template <typename T>
struct FinishRange {
  static constexpr uint32_t kThreads = BlockExtremes<T>::kThreads;
  static constexpr int kPhases = 3;
  using Shared = BlockExtremes<T>;
  using State = Nothing;

  const T* lo = nullptr;  ///< [count]
  const T* hi = nullptr;
  int64_t count = 0;             ///< 0: the range stays
  quant::ObserverState state{};  ///< null: no quantizer
  bool extremes = false;         ///< the observer's kind
  float averaging_constant = 0;
  quant::Preset preset = quant::Preset::kHorizon;
  DeviceGrid<T>* grid = nullptr;
  float* out_scale = nullptr;
  int32_t* out_zero_point = nullptr;  ///< as stored
  int64_t* tracked = nullptr;         ///< counts one more batch

  HORIZON_HD void operator()(int phase, const Thread& t, State&, Shared& shared) const {
    if (phase == 0) {
      T low = kInfinite<T>, high = -kInfinite<T>;
      for (int64_t i = t.index; i < count; i += kThreads) {
        low = lower_of(low, lo[i]);
        high = higher_of(high, hi[i]);
      }
      shared.put(t.index, low, high);
    } else if (phase == 1) {
      shared.merge_threads(t.index);
    } else if (t.index == 0) {
      shared.merge_heads();
      end(static_cast<float>(shared.lo[0]), static_cast<float>(shared.hi[0]));
    }
  }

 private:
  HORIZON_HD void end(float low, float high) const {
    if (tracked != nullptr) ++*tracked;
    if (state.scale == nullptr) return;
    if (count != 0 && quant::is_finite_range(low, high)) {
      quant::move_range(state, low, high, extremes, averaging_constant, preset);
    }
    const float scale = *state.scale;
    const int32_t zero_point = *state.zero_point;
    if (grid != nullptr) {
      *grid = {static_cast<T>(scale), static_cast<T>(1.0F / scale), static_cast<T>(zero_point),
               static_cast<T>(quant::quant_min(preset)), static_cast<T>(quant::quant_max(preset))};
    }
    if (out_scale != nullptr) *out_scale = scale;
    if (out_zero_point != nullptr) {
      *out_zero_point = quant::stored_zero_point(zero_point, preset);
    }
  }
};

}  // namespace horizon::ops::cuda
