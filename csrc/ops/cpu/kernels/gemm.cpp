#include "ops/cpu/kernels/gemm.h"

namespace horizon::cpu::HORIZON_CAPABILITY {

const GemmKernels& gemm_kernels() {
  static const GemmKernels table{};
  return table;
}

}  // namespace horizon::cpu::HORIZON_CAPABILITY
