#pragma once

#include <cstdint>

#include "ops/cpu/dispatch.h"
#include "ops/cpu/kernels/float_types.h"

namespace horizon::cpu {

/// Extremes of dense memory. NaN is never dropped.
struct ObserveKernels {
  /// Minimum and maximum of x[0, count); both NaN if any element is. `count` > 0.
  void (*min_max)(FloatType type, const void* x, int64_t count, double* lo, double* hi);

  /// Largest magnitude of each channel of [outer, channels, inner], of which [begin, end) are
  /// handled; NaN if any element of the channel is, 0 without elements.
  void (*channel_abs_max)(FloatType type, const void* x, int64_t outer, int64_t channels,
                          int64_t inner, int64_t begin, int64_t end, double* out);
};

HORIZON_DECLARE_KERNELS(ObserveKernels, observe_kernels);

}  // namespace horizon::cpu
