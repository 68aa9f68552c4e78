#pragma once

#include <cstdint>

#include "ops/cuda/kernels/fused_elements.h"
#include "ops/cuda/launch.h"
#include "quant/qparams.h"

namespace horizon::ops::cuda {

/// The scale of each output channel of weights laid out as [blocks, outer, channels, inner]: one
/// block of threads takes a channel. A channel that is not finite has such a scale.
template <typename S, typename T>
struct WeightScale {
  static constexpr uint32_t kThreads = 256;
  static constexpr int kPhases = 3;
  static constexpr uint32_t kHeads = 16;
  struct Shared {
    T peak[kThreads];
  };
  using State = Nothing;

  const S* weight = nullptr;
  int64_t outer = 1, channels = 1, inner = 1;
  float* scale = nullptr;  ///< [blocks * channels], as many as the grid has blocks

  HORIZON_HD void operator()(int phase, const Thread& t, State&, Shared& shared) const {
    if (phase == 0) {
      shared.peak[t.index] = outer == 1 ? peak_of_run(t) : peak_of_rows(t);
    } else if (phase == 1) {
      if (t.index < kHeads) merge(shared, t.index, kThreads, kHeads);
    } else if (t.index == 0) {
      merge(shared, 0, kHeads, 1);
      scale[t.block.x] = quant::weight_scale(static_cast<float>(shared.peak[0]));
    }
  }

 private:
  static HORIZON_HD T magnitude(T v) { return v < T(0) ? -v : v; }

  HORIZON_HD T peak_of_run(const Thread& t) const {
    const S* run = weight + int64_t{t.block.x} * inner;
    T peak = T(0);
    for (int64_t i = int64_t{t.index} * kPiece; i < inner; i += int64_t{kThreads} * kPiece) {
      const int64_t left = inner - i;
      T v[kPiece];
      load<kPiece>(run + i, left < kPiece ? left : kPiece, v);
      for (int j = 0; j < kPiece; ++j) peak = higher_of(peak, magnitude(v[j]));
    }
    return peak;
  }

  HORIZON_HD T peak_of_rows(const Thread& t) const {
    const int64_t block = divide(t.block.x, channels);
    const int64_t channel = t.block.x - block * channels;
    T peak = T(0);
    for (int64_t i = t.index; i < outer * inner; i += kThreads) {
      const int64_t row = divide(i, inner);
      const int64_t at = ((block * outer + row) * channels + channel) * inner + (i - row * inner);
      peak = higher_of(peak, magnitude(static_cast<T>(weight[at])));
    }
    return peak;
  }

  static HORIZON_HD void merge(Shared& shared, uint32_t at, uint32_t until, uint32_t step) {
    for (uint32_t i = at + step; i < until; i += step) {
      shared.peak[at] = higher_of(shared.peak[at], shared.peak[i]);
    }
  }
};

}  // namespace horizon::ops::cuda
