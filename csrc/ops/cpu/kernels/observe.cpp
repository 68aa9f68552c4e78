#include "ops/cpu/kernels/observe.h"

namespace horizon::cpu::HORIZON_CAPABILITY {

const ObserveKernels& observe_kernels() {
  static const ObserveKernels table{};
  return table;
}

}  // namespace horizon::cpu::HORIZON_CAPABILITY
