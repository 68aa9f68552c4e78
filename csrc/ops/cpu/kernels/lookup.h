#pragma once

#include <cstdint>

#include "ops/cpu/dispatch.h"

namespace horizon::cpu {

struct LookupKernels {
  /// output[i] = table[codes[i]], i < count. `table`: 256 entries.
  void (*lookup)(const uint8_t* codes, const uint8_t* table, int64_t count, uint8_t* output);
};

HORIZON_DECLARE_KERNELS(LookupKernels, lookup_kernels);

}  // namespace horizon::cpu
