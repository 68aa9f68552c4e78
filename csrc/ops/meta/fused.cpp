#include "ops/fused.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "ops/fused_shapes.h"

namespace horizon::ops {
namespace {

using torch::jit::Stack;

at::Tensor empty(c10::SymIntArrayRef sizes, at::ScalarType type, const at::Tensor& like,
                 bool channels_last) {
  const bool last = channels_last && sizes.size() == 4;
  return at::empty_symint(sizes, like.options().dtype(type),
                          last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous);
}

at::Tensor none(at::ScalarType type, const at::Tensor& like) {
  return at::empty({0}, like.options().dtype(type));
}

at::ScalarType statistics_type(at::ScalarType type) {
  return type == at::kDouble ? at::kDouble : at::kFloat;
}

FusedForward forward(const FusedArgs& args, const FusedPlan& plan) {
  const at::Tensor& input = args.input;
  const at::ScalarType type = input.scalar_type();
  const bool last = plan.channels_last;
  const bool inner = channel_inner(args.base, last);
  const SymSizes z = fused_z_sizes(fused_convolution(args));
  const FusedOutput output = fused_output(z, args.skip);
  FusedForward result;
  result.output = empty(output.sizes, type, input, last && output.as_z);
  if (drops_batch(args)) result.output = result.output.squeeze(0);
  std::tie(result.scale, result.zero_point) = meta_qparams(args.quantizer, input);
  result.z = plan.save_z ? empty(z, type, input, last) : none(type, input);
  result.mask = none(at::kByte, input);
  if (plan.save_mask) {
    c10::SymInt bytes;
    if (output.as_z) {
      bytes = mask_bytes(z, fused_channels(args.weight, args.base, args.groups), inner);
    } else {
      c10::SymInt total = 1;
      for (const auto& size : output.sizes) total *= size;
      bytes = flat_mask_bytes(total);
    }
    result.mask = empty({&bytes, 1}, at::kByte, input, false);
  }
  result.moments = none(statistics_type(type), input);
  if (plan.save_moments) {
    const int64_t channels = fused_channels(args.weight, args.base, args.groups);
    result.moments = at::empty({2, channels}, input.options().dtype(statistics_type(type)));
  }
  result.codes =
      plan.save_codes ? empty(input.sym_sizes(), at::kByte, input, last) : none(at::kByte, input);
  return result;
}

FusedGradients backward(const FusedBackwardArgs& args) {
  const at::Tensor& grad = args.grad;
  const at::ScalarType type = grad.scalar_type();
  const auto vector_type = statistics_type(type);
  const int64_t channels = fused_channels(args.weight, args.base, args.groups);
  const bool last = args.channels_last;
  FusedGradients result;
  const std::array<at::ScalarType, 6> types{type,        type,        vector_type,
                                            vector_type, vector_type, type};
  for (size_t i = 0; i < result.size(); ++i) result[i] = none(types[i], grad);
  if (args.needs[0]) result[0] = empty(args.input.sym_sizes(), type, grad, last);
  if (args.needs[1]) {
    const bool weight_last = args.weight.suggest_memory_format() == at::MemoryFormat::ChannelsLast;
    result[1] = empty(args.weight.sym_sizes(), type, grad, weight_last);
  }
  for (const size_t i : {2, 3, 4}) {
    if (args.needs[i]) result[i] = at::empty({channels}, grad.options().dtype(vector_type));
  }
  if (args.needs[5]) result[5] = empty(args.skip_size, type, grad, last);
  return result;
}

void fused_meta(const c10::OperatorHandle&, Stack* stack) {
  const FusedArgs args = pop_fused_args(*stack);
  check_fused(args);
  FusedPlan plan;
  plan.channels_last = fused_channels_last(args);
  const FusedForward r = forward(args, plan);
  torch::jit::push(*stack, r.output, r.scale, r.zero_point);
}

void fused_forward_meta(const c10::OperatorHandle&, Stack* stack) {
  const auto [args, plan] = pop_fused_forward(*stack);
  push_results(*stack, forward(args, plan));
}

void fused_backward_meta(const c10::OperatorHandle&, Stack* stack) {
  push_results(*stack, backward(pop_fused_backward(*stack)));
}

}  // namespace

TORCH_LIBRARY_IMPL(horizon, Meta, m) {
  m.impl("fused", torch::CppFunction::makeFromBoxedFunction<&fused_meta>());
  m.impl("_fused_forward", torch::CppFunction::makeFromBoxedFunction<&fused_forward_meta>());
  m.impl("_fused_backward", torch::CppFunction::makeFromBoxedFunction<&fused_backward_meta>());
}

}  // namespace horizon::ops
