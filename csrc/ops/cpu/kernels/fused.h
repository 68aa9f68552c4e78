#pragma once

#include <cstdint>

#include "ops/cpu/dispatch.h"

namespace horizon::cpu {

struct FusedKernels {
};

HORIZON_DECLARE_KERNELS(FusedKernels, fused_kernels);

}  // namespace horizon::cpu
