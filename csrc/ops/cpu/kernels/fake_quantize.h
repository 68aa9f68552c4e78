#pragma once

#include <cstdint>

#include "ops/cpu/dispatch.h"

namespace horizon::cpu {

struct FakeQuantizeKernels {
};

HORIZON_DECLARE_KERNELS(FakeQuantizeKernels, fake_quantize_kernels);

}  // namespace horizon::cpu
