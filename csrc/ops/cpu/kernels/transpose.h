#pragma once

#include <cstdint>

#include "ops/cpu/dispatch.h"

namespace horizon::cpu {

struct TransposeKernels {
  /// output[c * output_stride + r] = codes[r * stride + c], r < rows, c < columns. Strides are in
  /// codes; output_stride >= rows. Nothing but the result is written in the end: callers may share
  /// columns, and not rows, among threads.
  void (*transpose)(const uint8_t* codes, int64_t stride, int64_t rows, int64_t columns,
                    uint8_t* output, int64_t output_stride);
};

HORIZON_DECLARE_KERNELS(TransposeKernels, transpose_kernels);

}  // namespace horizon::cpu
