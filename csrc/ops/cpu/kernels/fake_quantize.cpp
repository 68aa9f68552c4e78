#include "ops/cpu/kernels/fake_quantize.h"

namespace horizon::cpu::HORIZON_CAPABILITY {

const FakeQuantizeKernels& fake_quantize_kernels() {
  static const FakeQuantizeKernels table{};
  return table;
}

}  // namespace horizon::cpu::HORIZON_CAPABILITY
