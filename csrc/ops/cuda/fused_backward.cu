#include <ATen/DeviceGuard.h>
#include <torch/library.h>

#include "ops/cuda/fused_backward.h"
#include "ops/cuda/runner.h"

namespace horizon::ops {
namespace {

void fused_backward_cuda(const c10::OperatorHandle&, torch::jit::Stack* stack) {
  const FusedBackwardArgs args = pop_fused_backward(*stack);
  const at::OptionalDeviceGuard guard(at::device_of(args.grad));
  push_results(*stack, cuda::fused_backward(args, cuda::DeviceRunner()));
}

}  // namespace

TORCH_LIBRARY_IMPL(horizon, CUDA, m) {
  m.impl("_fused_backward", torch::CppFunction::makeFromBoxedFunction<&fused_backward_cuda>());
}

}  // namespace horizon::ops
