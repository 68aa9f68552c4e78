#pragma once

#include <cstdint>

#include "ops/cpu/dispatch.h"
#include "ops/pool_windows.h"

namespace horizon::cpu {

using ops::MaxPoolAxis;

struct MaxPoolKernels {
  /// The largest codes of the windows in one row of the result. `plane`: [y size][x size][channels]
  /// codes; `scratch`: room for two of its rows; `output`: [x count][channels].
  void (*row)(const uint8_t* plane, const MaxPoolAxis& y_axis, const MaxPoolAxis& x_axis,
              int64_t channels, int64_t row, uint8_t* scratch, uint8_t* output);
};

HORIZON_DECLARE_KERNELS(MaxPoolKernels, max_pool_kernels);

}  // namespace horizon::cpu
