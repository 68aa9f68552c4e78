#pragma once

#include <cstdint>

#include "ops/cpu/dispatch.h"

namespace horizon::cpu {

struct LookupKernels {
  /// table[q] for `rows` rows of `width` codes each, which begin `stride` and `output_stride` codes
  /// after one another. `table`: 256 entries.
  void (*lookup)(const uint8_t* codes, const uint8_t* table, int64_t rows, int64_t width,
                 int64_t stride, uint8_t* output, int64_t output_stride);
};

HORIZON_DECLARE_KERNELS(LookupKernels, lookup_kernels);

}  // namespace horizon::cpu
