#include "ops/fused.h"

#include <ATen/ExpandUtils.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>

#include "ops/fused_shapes.h"

namespace horizon::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;
using torch::jit::Stack;

// The differentiable arguments, in the order that FusedFunction::forward takes them.
enum Edge : size_t { kInput, kWeight, kBias, kBnWeight, kBnBias, kSkip, kEdges };

std::array<const std::optional<at::Tensor>*, 4> optional_edges(const FusedArgs& a) {
  return {&a.bias, &a.bn_weight, &a.bn_bias, &a.skip};
}

bool wants_gradient(const FusedArgs& a) {
  if (!c10::GradMode::is_enabled()) return false;
  if (a.input.requires_grad() || a.weight.requires_grad()) return true;
  for (const auto* tensor : optional_edges(a)) {
    if (tensor->has_value() && (*tensor)->requires_grad()) return true;
  }
  return false;
}

at::Tensor or_undefined(const std::optional<at::Tensor>& tensor) {
  return tensor.value_or(at::Tensor());
}

std::optional<at::Tensor> or_none(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

class FusedFunction : public torch::autograd::Function<FusedFunction> {
 public:
  static variable_list forward(AutogradContext* ctx, const Variable& input, const Variable& weight,
                               const std::optional<Variable>& bias,
                               const std::optional<Variable>& bn_weight,
                               const std::optional<Variable>& bn_bias,
                               const std::optional<Variable>& skip, const FusedArgs& args) {
    at::AutoDispatchBelowADInplaceOrView guard;
    FusedPlan plan;
    plan.channels_last = fused_channels_last(args);
    plan.save_z = args.batch_norm &&
                  (args.batch_stats || (bn_weight.has_value() && bn_weight->requires_grad()));
    plan.save_mask = args.activation != 0 || args.quantizer.quantizes();
    plan.save_moments = args.batch_norm;
    plan.save_codes = args.input_scale.has_value();
    const FusedForward result = call_fused_forward(args, plan);

    const bool codes = plan.save_codes;
    ctx->save_for_backward({codes ? result.codes : input, codes ? *args.input_scale : at::Tensor(),
                            codes ? *args.input_zero_point : at::Tensor(), weight,
                            or_undefined(bn_weight), plan.save_z ? result.z : at::Tensor(),
                            plan.save_mask ? result.mask : at::Tensor(),
                            args.batch_norm ? result.moments : at::Tensor()});
    auto& data = ctx->saved_data;
    data["base"] = args.base;
    data["stride"] = args.stride;
    data["padding"] = args.padding;
    data["dilation"] = args.dilation;
    data["output_padding"] = args.output_padding;
    data["groups"] = args.groups;
    data["batch_norm"] = args.batch_norm;
    data["batch_stats"] = args.batch_stats;
    data["quantize_weight"] = args.quantize_weight;
    data["channels_last"] = plan.channels_last;
    if (skip.has_value()) data["skip_size"] = skip->sym_sizes().vec();
    // Arguments that are None have no edge.
    std::vector<int64_t> edges{0, 1};
    for (const auto* tensor : optional_edges(args)) {
      const int64_t next = *std::max_element(edges.begin(), edges.end()) + 1;
      edges.push_back(tensor->has_value() ? next : -1);
    }
    data["edges"] = edges;
    ctx->mark_non_differentiable({result.scale, result.zero_point});
    return {result.output, result.scale, result.zero_point};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    auto& data = ctx->saved_data;
    FusedBackwardArgs args;
    args.grad = grads[0];
    args.input = saved[0];
    args.input_scale = or_none(saved[1]);
    args.input_zero_point = or_none(saved[2]);
    args.weight = saved[3];
    args.bn_weight = or_none(saved[4]);
    args.z = or_none(saved[5]);
    args.mask = or_none(saved[6]);
    args.moments = or_none(saved[7]);
    args.base = data["base"].toInt();
    args.stride = data["stride"].toIntVector();
    args.padding = data["padding"].toIntVector();
    args.dilation = data["dilation"].toIntVector();
    args.output_padding = data["output_padding"].toIntVector();
    args.groups = data["groups"].toInt();
    args.batch_norm = data["batch_norm"].toBool();
    args.batch_stats = data["batch_stats"].toBool();
    args.quantize_weight = data["quantize_weight"].toBool();
    args.channels_last = data["channels_last"].toBool();
    const auto skip_size = data.find("skip_size");
    if (skip_size != data.end()) args.skip_size = skip_size->second.toSymIntVector();
    const std::vector<int64_t> edges = data["edges"].toIntVector();
    bool any = false;
    for (size_t i = 0; i < kEdges; ++i) {
      args.needs[i] = edges[i] >= 0 && ctx->needs_input_grad(static_cast<size_t>(edges[i]));
      any = any || (args.needs[i] && (i != kSkip || args.mask.has_value()));
    }
    variable_list result(kEdges + 1);
    // Where every gradient passes, the skip's is the output's, and an operator must not return
    // its own argument.
    if (args.needs[kSkip] && !args.mask.has_value()) {
      result[kSkip] = at::sum_to(args.grad, c10::SymIntArrayRef(args.skip_size));
      args.needs[kSkip] = false;
    }
    if (!any) return result;
    FusedGradients gradients = call_fused_backward(args);
    for (size_t i = 0; i < kEdges; ++i) {
      if (args.needs[i]) result[i] = std::move(gradients[i]);
    }
    return result;
  }
};

void fused_autograd(const c10::OperatorHandle&, Stack* stack) {
  const FusedArgs args = pop_fused_args(*stack);
  check_fused(args);
  if (wants_gradient(args)) {
    variable_list r = FusedFunction::apply(args.input, args.weight, args.bias, args.bn_weight,
                                           args.bn_bias, args.skip, args);
    torch::jit::push(*stack, r[0], r[1], r[2]);
    return;
  }
  at::AutoDispatchBelowADInplaceOrView guard;
  FusedPlan plan;
  plan.channels_last = fused_channels_last(args);
  const FusedForward r = call_fused_forward(args, plan);
  torch::jit::push(*stack, r.output, r.scale, r.zero_point);
}

/// Runs the backward pass; differentiating its result raises.
class FusedBackwardFunction : public torch::autograd::Function<FusedBackwardFunction> {
 public:
  static variable_list forward(AutogradContext*, at::TensorList inputs,
                               const c10::OperatorHandle& op, Stack* stack) {
    at::AutoDispatchBelowADInplaceOrView guard;
    op.callBoxed(stack);
    variable_list results;
    for (const c10::IValue& value : *stack) results.push_back(value.toTensor());
    return results;
  }
  static variable_list backward(AutogradContext*, variable_list) {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "fused: double backward is not supported");
  }
};

void fused_backward_autograd(const c10::OperatorHandle& op, Stack* stack) {
  variable_list inputs;
  if (c10::GradMode::is_enabled()) {
    for (const c10::IValue& value : *stack) {
      if (value.isTensor() && value.toTensor().defined() && value.toTensor().requires_grad()) {
        inputs.push_back(value.toTensor());
      }
    }
  }
  if (inputs.empty()) {
    at::AutoDispatchBelowADInplaceOrView guard;
    op.callBoxed(stack);
    return;
  }
  const variable_list results = FusedBackwardFunction::apply(at::TensorList(inputs), op, stack);
  stack->clear();
  for (const at::Tensor& result : results) torch::jit::push(*stack, result);
}

}  // namespace

TORCH_LIBRARY_IMPL(horizon, Autograd, m) {
  m.impl("fused", torch::CppFunction::makeFromBoxedFunction<&fused_autograd>());
  m.impl("_fused_backward", torch::CppFunction::makeFromBoxedFunction<&fused_backward_autograd>());
}

}  // namespace horizon::ops
