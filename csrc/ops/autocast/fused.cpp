#include "ops/fused.h"

#include <ATen/autocast_mode.h>
#include <torch/library.h>

// Under autocast a group runs in the region's dtype, as a convolution does. Parameters stay what
// they are: weights are quantized in float32 before they are rounded, statistics and ranges are
// float32. What a group calls inside is not cast again.
namespace horizon::ops {
namespace {

using torch::jit::Stack;

bool is_cast(const at::Tensor& tensor) {
  return tensor.is_floating_point() && tensor.scalar_type() != at::kDouble;
}

template <at::DeviceType kDevice>
void fused_autocast(const c10::OperatorHandle&, Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard guard(c10::autocast_dispatch_keyset);
  FusedArgs args = pop_fused_args(*stack);
  // The arithmetic of the converted model has no dtype; its result has the input's.
  if (!args.integer && is_cast(args.input)) {
    args.input = args.input.to(at::autocast::get_autocast_dtype(kDevice));
  }
  if (args.skip.has_value() && is_cast(*args.skip) && is_cast(args.input)) {
    args.skip = args.skip->to(args.input.scalar_type());
  }
  const auto [output, scale, zero_point] = fused(args);
  torch::jit::push(*stack, output, scale, zero_point);
}

void without_autocast(const c10::OperatorHandle& op, Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard guard(c10::autocast_dispatch_keyset);
  op.callBoxed(stack);
}

template <at::DeviceType kDevice>
void add_kernels(torch::Library& m) {
  m.impl("fused", torch::CppFunction::makeFromBoxedFunction<&fused_autocast<kDevice>>());
  m.impl("_fused_forward", torch::CppFunction::makeFromBoxedFunction<&without_autocast>());
  m.impl("_fused_backward", torch::CppFunction::makeFromBoxedFunction<&without_autocast>());
}

}  // namespace

TORCH_LIBRARY_IMPL(horizon, AutocastCPU, m) { add_kernels<at::kCPU>(m); }
TORCH_LIBRARY_IMPL(horizon, AutocastCUDA, m) { add_kernels<at::kCUDA>(m); }

}  // namespace horizon::ops
