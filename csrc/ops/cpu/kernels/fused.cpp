#include "ops/cpu/kernels/fused.h"

namespace horizon::cpu::HORIZON_CAPABILITY {

const FusedKernels& fused_kernels() {
  static const FusedKernels table{};
  return table;
}

}  // namespace horizon::cpu::HORIZON_CAPABILITY
