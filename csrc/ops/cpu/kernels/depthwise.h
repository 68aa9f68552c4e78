#pragma once

#include <cstdint>

#include "ops/cpu/kernels/gemm.h"

namespace horizon::cpu {

/// Convolutions with one input channel per output channel.
struct DepthwiseKernels {
  /// acc[r][c] = sum_t x[r, t][c] * weight[t][c] for rows [first, first + rows), where x are codes
  /// as in GatherGeometry, outside the image those of `padding` [channels] (filled with the zero
  /// point). The caller subtracts z * sum_t weight[t][c]. `weight` is int32 [taps][channels].
  void (*accumulate)(const GatherGeometry& geometry, const int32_t* weight, const uint8_t* padding,
                     int64_t first, int64_t rows, int32_t* acc);
};

HORIZON_DECLARE_KERNELS(DepthwiseKernels, depthwise_kernels);

/// The most taps that `accumulate` takes; more go through the matrix product.
inline constexpr int64_t kMaxDepthwiseTaps = 256;

}  // namespace horizon::cpu
