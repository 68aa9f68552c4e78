#include "ops/cpu/kernels/fused.h"

#include "ops/cpu/kernels/fused_lanes.h"

namespace horizon::cpu::HORIZON_CAPABILITY {
namespace {

template <typename T>
void add_all(FusedKernelsOf<T>& table) {
  add_forward(table);
  add_statistics(table);
  add_backward(table);
}

FusedKernels make_table() {
  FusedKernels table{};
  add_all(table.f32);
  add_all(table.f64);
  return table;
}

}  // namespace

const FusedKernels& fused_kernels() {
  static const FusedKernels table = make_table();
  return table;
}

}  // namespace horizon::cpu::HORIZON_CAPABILITY
