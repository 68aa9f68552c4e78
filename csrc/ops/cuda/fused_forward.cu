#include <ATen/DeviceGuard.h>
#include <torch/library.h>

#include "ops/cuda/fused_forward.h"
#include "ops/cuda/runner.h"

namespace horizon::ops {
namespace {

using torch::jit::Stack;

FusedForward forward(const FusedArgs& args, const FusedPlan& plan) {
  const at::OptionalDeviceGuard guard(at::device_of(args.input));
  return cuda::fused_forward(args, plan, cuda::DeviceRunner());
}

void fused_cuda(const c10::OperatorHandle&, Stack* stack) {
  const FusedArgs args = pop_fused_args(*stack);
  check_fused(args);
  FusedPlan plan;
  plan.channels_last = fused_channels_last(args);
  const FusedForward r = forward(args, plan);
  torch::jit::push(*stack, r.output, r.scale, r.zero_point);
}

void fused_forward_cuda(const c10::OperatorHandle&, Stack* stack) {
  const auto [args, plan] = pop_fused_forward(*stack);
  check_fused(args);
  push_results(*stack, forward(args, plan));
}

}  // namespace

TORCH_LIBRARY_IMPL(horizon, CUDA, m) {
  m.impl("fused", torch::CppFunction::makeFromBoxedFunction<&fused_cuda>());
  m.impl("_fused_forward", torch::CppFunction::makeFromBoxedFunction<&fused_forward_cuda>());
}

}  // namespace horizon::ops
