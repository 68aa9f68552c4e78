#include "ops/fused.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <string>

namespace horizon::ops {
namespace {

using torch::jit::Stack;

const std::string kArguments =
    "Tensor input, Tensor? input_scale, Tensor? input_zero_point, Tensor weight, Tensor? bias, "
    "Tensor? bn_weight, Tensor? bn_bias, Tensor(a!)? running_mean, Tensor(b!)? running_var, "
    "Tensor(c!)? num_batches_tracked, "
    "Tensor? skip, Tensor? skip_scale, Tensor? skip_zero_point, "
    "Tensor(d!)? min_val, Tensor(e!)? max_val, Tensor(f!)? observed, Tensor(g!)? scale, "
    "Tensor(h!)? zero_point, "
    "int base, int[] stride, int[] padding, int[] dilation, int[] output_padding, int groups, "
    "bool batch_norm, bool batch_stats, float? momentum, float eps, int activation, "
    "bool quantize_weight, bool integer, "
    "int preset, int observer, float averaging_constant, bool observe, bool fake_quantize, "
    "bool skip_nonfinite";
constexpr size_t kArgumentCount = 37;

/// Takes the arguments off a stack in the order of the schema.
class Reader {
 public:
  Reader(Stack& stack, size_t count) : stack_(stack), at_(stack.size() - count) {}

  at::Tensor tensor() { return std::move(next()).toTensor(); }
  std::optional<at::Tensor> maybe_tensor() {
    c10::IValue value = std::move(next());
    if (value.isNone()) return std::nullopt;
    at::Tensor result = std::move(value).toTensor();
    if (!result.defined()) return std::nullopt;
    return result;
  }
  int64_t integer() { return next().toInt(); }
  bool boolean() { return next().toBool(); }
  double real() { return next().toDouble(); }
  std::optional<double> maybe_real() {
    const c10::IValue& value = next();
    return value.isNone() ? std::nullopt : std::optional<double>(value.toDouble());
  }
  std::vector<int64_t> list() { return next().toIntVector(); }
  std::vector<c10::SymInt> symbolic_list() { return next().toSymIntVector(); }
  c10::List<bool> flags() { return next().toBoolList(); }

 private:
  c10::IValue& next() { return stack_[at_++]; }

  Stack& stack_;
  size_t at_;
};

FusedArgs read_arguments(Reader& in) {
  FusedArgs a;
  a.input = in.tensor();
  a.input_scale = in.maybe_tensor();
  a.input_zero_point = in.maybe_tensor();
  a.weight = in.tensor();
  for (auto* slot :
       {&a.bias, &a.bn_weight, &a.bn_bias, &a.running_mean, &a.running_var, &a.num_batches_tracked,
        &a.skip, &a.skip_scale, &a.skip_zero_point, &a.quantizer.min_val, &a.quantizer.max_val,
        &a.quantizer.observed, &a.quantizer.scale, &a.quantizer.zero_point}) {
    *slot = in.maybe_tensor();
  }
  a.base = in.integer();
  a.stride = in.list();
  a.padding = in.list();
  a.dilation = in.list();
  a.output_padding = in.list();
  a.groups = in.integer();
  a.batch_norm = in.boolean();
  a.batch_stats = in.boolean();
  a.momentum = in.maybe_real();
  a.eps = in.real();
  a.activation = in.integer();
  a.quantize_weight = in.boolean();
  a.integer = in.boolean();
  a.quantizer.preset = in.integer();
  a.quantizer.observer = in.integer();
  a.quantizer.averaging_constant = in.real();
  a.quantizer.observe = in.boolean();
  a.quantizer.fake_quantize = in.boolean();
  a.quantizer.skip_nonfinite = in.boolean();
  return a;
}

void push_arguments(Stack& stack, const FusedArgs& a) {
  const QuantizerArgs& q = a.quantizer;
  torch::jit::push(stack, a.input, a.input_scale, a.input_zero_point, a.weight, a.bias, a.bn_weight,
                   a.bn_bias, a.running_mean, a.running_var, a.num_batches_tracked, a.skip,
                   a.skip_scale, a.skip_zero_point, q.min_val, q.max_val, q.observed, q.scale,
                   q.zero_point, a.base, a.stride, a.padding, a.dilation, a.output_padding,
                   a.groups, a.batch_norm, a.batch_stats, a.momentum, a.eps, a.activation,
                   a.quantize_weight, a.integer, q.preset, q.observer, q.averaging_constant,
                   q.observe, q.fake_quantize, q.skip_nonfinite);
}

c10::OperatorHandle find(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
}

template <size_t kCount>
std::array<at::Tensor, kCount> call(const c10::OperatorHandle& op, Stack& stack) {
  op.callBoxed(stack);
  std::array<at::Tensor, kCount> results;
  for (size_t i = 0; i < kCount; ++i) results[i] = std::move(stack[i]).toTensor();
  return results;
}

}  // namespace

std::tuple<at::Tensor, at::Tensor, at::Tensor> fused(const FusedArgs& args) {
  static const c10::OperatorHandle op = find("horizon::fused");
  Stack stack;
  push_arguments(stack, args);
  auto r = call<3>(op, stack);
  return {r[0], r[1], r[2]};
}

FusedForward call_fused_forward(const FusedArgs& args, const FusedPlan& plan) {
  static const c10::OperatorHandle op = find("horizon::_fused_forward");
  Stack stack;
  push_arguments(stack, args);
  torch::jit::push(stack, plan.channels_last, plan.save_z, plan.save_mask, plan.save_moments,
                   plan.save_codes);
  auto r = call<7>(op, stack);
  return {r[0], r[1], r[2], r[3], r[4], r[5], r[6]};
}

FusedGradients call_fused_backward(const FusedBackwardArgs& a) {
  static const c10::OperatorHandle op = find("horizon::_fused_backward");
  Stack stack;
  c10::List<bool> needs;
  for (const bool need : a.needs) needs.push_back(need);
  torch::jit::push(stack, a.grad, a.z, a.mask, a.moments, a.input, a.input_scale,
                   a.input_zero_point, a.weight, a.bn_weight, a.skip_size, a.base, a.stride,
                   a.padding, a.dilation, a.output_padding, a.groups, a.batch_norm, a.batch_stats,
                   a.quantize_weight, a.channels_last, needs);
  return call<6>(op, stack);
}

FusedArgs pop_fused_args(Stack& stack) {
  Reader in(stack, kArgumentCount);
  FusedArgs args = read_arguments(in);
  torch::jit::drop(stack, kArgumentCount);
  return args;
}

std::pair<FusedArgs, FusedPlan> pop_fused_forward(Stack& stack) {
  Reader in(stack, kArgumentCount + 5);
  std::pair<FusedArgs, FusedPlan> result{read_arguments(in), {}};
  result.second.channels_last = in.boolean();
  result.second.save_z = in.boolean();
  result.second.save_mask = in.boolean();
  result.second.save_moments = in.boolean();
  result.second.save_codes = in.boolean();
  torch::jit::drop(stack, kArgumentCount + 5);
  return result;
}

FusedBackwardArgs pop_fused_backward(Stack& stack) {
  constexpr size_t kCount = 21;
  Reader in(stack, kCount);
  FusedBackwardArgs a;
  a.grad = in.tensor();
  a.z = in.maybe_tensor();
  a.mask = in.maybe_tensor();
  a.moments = in.maybe_tensor();
  a.input = in.tensor();
  a.input_scale = in.maybe_tensor();
  a.input_zero_point = in.maybe_tensor();
  a.weight = in.tensor();
  a.bn_weight = in.maybe_tensor();
  a.skip_size = in.symbolic_list();
  a.base = in.integer();
  a.stride = in.list();
  a.padding = in.list();
  a.dilation = in.list();
  a.output_padding = in.list();
  a.groups = in.integer();
  a.batch_norm = in.boolean();
  a.batch_stats = in.boolean();
  a.quantize_weight = in.boolean();
  a.channels_last = in.boolean();
  const c10::List<bool> needs = in.flags();
  TORCH_CHECK_VALUE(needs.size() == a.needs.size(),
                    "_fused_backward: 'needs' must be a list of 6, got ", needs.size());
  for (size_t i = 0; i < a.needs.size(); ++i) a.needs[i] = needs[i];
  torch::jit::drop(stack, kCount);
  return a;
}

void push_results(Stack& stack, const FusedForward& r) {
  torch::jit::push(stack, r.output, r.scale, r.zero_point, r.z, r.mask, r.moments, r.codes);
}

void push_results(Stack& stack, const FusedGradients& r) {
  for (const at::Tensor& grad : r) torch::jit::push(stack, grad);
}

TORCH_LIBRARY_FRAGMENT(horizon, m) {
  const auto define = [&](const std::string& schema) { m.def(schema.c_str()); };
  define("fused(" + kArguments +
         ") -> (Tensor output, Tensor output_scale, Tensor output_zero_point)");
  define(
      "_fused_forward(" + kArguments +
      ", bool channels_last, bool save_z, bool save_mask, bool save_moments, bool save_codes) -> "
      "(Tensor output, Tensor output_scale, Tensor output_zero_point, Tensor z, Tensor mask, "
      "Tensor moments, Tensor codes)");
  define(
      "_fused_backward(Tensor grad, Tensor? z, Tensor? mask, Tensor? moments, Tensor input, "
      "Tensor? input_scale, Tensor? input_zero_point, Tensor weight, Tensor? bn_weight, "
      "SymInt[] skip_size, int base, int[] stride, int[] padding, int[] dilation, "
      "int[] output_padding, int groups, bool batch_norm, bool batch_stats, bool quantize_weight, "
      "bool channels_last, bool[] needs) -> (Tensor grad_input, Tensor grad_weight, "
      "Tensor grad_bias, Tensor grad_bn_weight, Tensor grad_bn_bias, Tensor grad_skip)");
}

}  // namespace horizon::ops
