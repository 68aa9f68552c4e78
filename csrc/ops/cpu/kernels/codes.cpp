#include "ops/cpu/kernels/codes.h"

namespace horizon::cpu::HORIZON_CAPABILITY {

const CodesKernels& codes_kernels() {
  static const CodesKernels table{};
  return table;
}

}  // namespace horizon::cpu::HORIZON_CAPABILITY
