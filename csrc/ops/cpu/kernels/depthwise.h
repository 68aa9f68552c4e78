#pragma once

#include <cstdint>

#include "ops/cpu/kernels/gemm.h"

namespace horizon::cpu {

/// Convolutions whose groups are too small for a matrix product: sums of codes times weights for
/// rows [first, first + rows) of a grid, for all output channels at once, outside the image with
/// the codes of `padding` (a pixel filled with the zero point). The caller subtracts
/// z * sum(weights). At most kMaxDepthwiseTaps taps.
struct DepthwiseKernels {
  int64_t lanes;

  /// One input channel per output channel. `weight` is int32 [taps][channels], `acc`
  /// [rows][channels].
  void (*depthwise)(const GatherGeometry& geometry, const int32_t* weight, const uint8_t* padding,
                    int64_t first, int64_t rows, int32_t* acc);

  /// `out_channels` in groups of few channels, at least three channels in all. They are read four
  /// at a time from `channel[o] + 4 * step` on, so that `padding` and `last`, a copy of the image's
  /// last pixel, have three readable bytes behind them. `weight` is [taps][steps][blocks][2][lanes]
  /// pairs of int16: of the channels 0 and 2, then 1 and 3. `acc` is [rows][out_channels rounded up
  /// to lanes], `channel` as long as its rows.
  void (*grouped)(const GatherGeometry& geometry, const int32_t* channel, int64_t out_channels,
                  const int32_t* weight, const uint8_t* padding, const uint8_t* last, int64_t first,
                  int64_t rows, int32_t* acc);
};

HORIZON_DECLARE_KERNELS(DepthwiseKernels, depthwise_kernels);

inline constexpr int64_t kMaxDepthwiseTaps = 256;

}  // namespace horizon::cpu
