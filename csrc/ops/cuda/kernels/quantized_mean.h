#pragma once

#include "ops/cuda/kernels/quantized_pool.h"

namespace horizon::ops::cuda {

/// Means of rows [rows][count] of codes: `lanes` threads add up a row, then up to kMerged of them
/// their sums, then one.
struct MeanOfRows {
  static constexpr uint32_t kThreads = 256;
  static constexpr int kPhases = 3;
  static constexpr uint32_t kMerged = 16;
  struct Shared {
    int64_t sums[kThreads];
  };
  using State = Nothing;

  DeviceGrid x, y;
  int64_t rows, count;
  uint32_t lanes;  ///< a power of two, at most kThreads
  const uint8_t* from;
  uint8_t* to;

  /// As many lanes as there are accesses of a row.
  static uint32_t lanes_for(int64_t count) {
    uint32_t lanes = 1;
    while (lanes < kThreads && lanes * kCodeVector < count) lanes *= 2;
    return lanes;
  }

  HORIZON_HD int64_t rows_of_block() const { return kThreads / lanes; }

  /// Blocks in two dimensions: no loop over rows, whose phases would have to repeat.
  Grid grid() const {
    constexpr int64_t kWide = 1 << 30;
    const int64_t blocks = (rows + rows_of_block() - 1) / rows_of_block();
    return {static_cast<uint32_t>(blocks < kWide ? blocks : kWide),
            static_cast<uint32_t>((blocks + kWide - 1) / kWide)};
  }

  HORIZON_HD void operator()(int phase, const Thread& t, State&, Shared& shared) const {
    const int64_t block = static_cast<int64_t>(t.block.y) * t.grid.x + t.block.x;
    const uint32_t lane = t.index % lanes;
    const int64_t row = block * rows_of_block() + t.index / lanes;
    if (row >= rows) return;
    if (phase == 0) {
      shared.sums[t.index] = sum_of_lane(from + row * count, lane);
      return;
    }
    int64_t* sums = shared.sums + (t.index - lane);
    const uint32_t merged = lanes < kMerged ? lanes : kMerged;
    if (phase == 1) {
      if (lane >= merged) return;
      for (uint32_t i = lane + merged; i < lanes; i += merged) sums[lane] += sums[i];
      return;
    }
    if (lane != 0) return;
    int64_t sum = 0;
    for (uint32_t i = 0; i < merged; ++i) sum += sums[i];
    const GridValues in = x.read();
    to[row] = static_cast<uint8_t>(average_code(sum - count * in.zero_point, count, in, y.read()));
  }

 private:
  HORIZON_HD int64_t sum_of_lane(const uint8_t* codes, uint32_t lane) const {
    int64_t sum = 0;
    for (int64_t i = int64_t{lane} * kCodeVector; i < count; i += int64_t{lanes} * kCodeVector) {
      const int64_t left = count - i;
      uint32_t v[kCodeVector];
      load<kCodeVector>(codes + i, left < kCodeVector ? left : kCodeVector, v);
      uint32_t part = 0;
      for (const uint32_t code : v) part += code;
      sum += part;
    }
    return sum;
  }
};

}  // namespace horizon::ops::cuda
