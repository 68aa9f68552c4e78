#pragma once

#include <cstdint>

#include "ops/cpu/dispatch.h"

namespace horizon::cpu {

struct CodesKernels {
};

HORIZON_DECLARE_KERNELS(CodesKernels, codes_kernels);

}  // namespace horizon::cpu
