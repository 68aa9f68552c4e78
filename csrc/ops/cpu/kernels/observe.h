#pragma once

#include <cstdint>

#include "ops/cpu/dispatch.h"

namespace horizon::cpu {

struct ObserveKernels {
};

HORIZON_DECLARE_KERNELS(ObserveKernels, observe_kernels);

}  // namespace horizon::cpu
