#pragma once

#include <cstdint>

#include "ops/cpu/dispatch.h"

namespace horizon::cpu {

struct GemmKernels {
};

HORIZON_DECLARE_KERNELS(GemmKernels, gemm_kernels);

}  // namespace horizon::cpu
