#include "nn/prepared.h"

#include <ATen/ops/ones.h>

#include "nn/grid.h"
#include "nn/members.h"
#include "nn/state.h"
#include "ops/fused.h"

namespace horizon::nn {
namespace {

// add(z, z): powers of two are exact, so the factor moves to where z gets its scale.
void double_result(ops::FusedArgs& args, int64_t channels) {
  if (!args.batch_norm) {
    args.weight = args.weight * 2.0;
    if (args.bias) args.bias = *args.bias * 2.0;
    return;
  }
  if (!args.bn_weight) args.bn_weight = at::ones({channels}, args.weight.options());
  args.bn_weight = *args.bn_weight * 2.0;
  if (args.bn_bias) args.bn_bias = *args.bn_bias * 2.0;
}

void set_norm(ops::FusedArgs& args, const torch::nn::Module& bn) {
  const NormTensors norm = norm_tensors(bn);
  args.batch_norm = true;
  args.bn_weight = maybe(norm.weight);
  args.bn_bias = maybe(norm.bias);
  args.running_mean = maybe(norm.running_mean);
  args.running_var = maybe(norm.running_var);
  args.num_batches_tracked = maybe(norm.num_batches_tracked);
  args.momentum = norm.momentum;
  args.eps = norm.eps;
  args.batch_stats = bn.is_training() || !norm.running_mean.defined();
}

}  // namespace

PreparedImpl::PreparedImpl(const FusedImpl& source, const QConfig& qconfig) : qconfig_(qconfig) {
  float_ =
      std::make_shared<FusedImpl>(source.variant(), source.base(), source.bn(), source.frozen());
  take_place(*this, source);
  take_place(*float_, source);
  const auto [weight, bias] = base_tensors(*source.base());
  register_parameter("weight", weight, weight.requires_grad());
  register_parameter("bias", bias, bias.defined() && bias.requires_grad());
  // Before the batch norm is a child: it keeps its own mode.
  torch::nn::Module::train(source.is_training());
  if (source.bn() != nullptr) register_module("bn", source.bn());
  if (qconfig.quantize_output) {
    quantizer_ =
        register_module("activation_post_process", std::make_shared<FakeQuantizeImpl>(qconfig));
    quantizer_->to(weight.device());
    quantizer_->train(is_training());
  }
}

at::Tensor PreparedImpl::compute(const Operands& operands, bool add_relu) {
  const GroupSpec& group_spec = spec();
  const auto& bn = float_->bn();
  const auto [weight, bias] = base_tensors(*float_->base());
  const Grid& input_grid = operand_grid(operands.source, path, "input", false);
  ops::FusedArgs args;
  args.input_scale = maybe(input_grid.scale);
  args.input_zero_point = maybe(input_grid.zero_point);
  if (operands.skip) {
    const Grid& skip_grid = operand_grid(*operands.skip, path, "skip", false);
    args.skip = operands.skip;
    args.skip_scale = maybe(skip_grid.scale);
    args.skip_zero_point = maybe(skip_grid.zero_point);
  }
  args.weight = weight;
  args.bias = maybe(bias);
  if (bn != nullptr) set_norm(args, *bn);
  if (group_spec.variant.add && !operands.skip) double_result(args, group_spec.out_channels);
  args.base = group_spec.base;
  args.stride = group_spec.stride;
  args.padding = group_spec.padding;
  args.dilation = group_spec.dilation;
  args.groups = group_spec.groups;
  args.activation = group_spec.activation(add_relu);
  args.quantize_weight = weight_fake_quant_enabled;
  const bool observe = quantizer_ != nullptr && quantizer_->moves();
  if (quantizer_ != nullptr) args.quantizer = quantizer_->args(observe);
  // Statistics of the batch itself cannot be deployed: convert refuses them.
  args.integer = weight_fake_quant_enabled && !is_training() && args.input_scale &&
                 (!operands.skip || args.skip_scale) &&
                 (quantizer_ == nullptr || quantizer_->fake_quant_enabled) && !observe &&
                 !args.batch_stats;
  return named(path, [&] {
    args.input = group_spec.padded(operands.source);
    args.output_padding = group_spec.output_padding_for(operands.source, operands.output_size);
    const auto [y, scale, zero_point] = ops::fused(args);
    if (quantizer_ == nullptr) {
      return with_grid(y, weight_fake_quant_enabled ? GridKind::kHighPrecision : GridKind::kOff,
                       path);
    }
    if (!quantizer_->fake_quant_enabled) return with_grid(y, GridKind::kOff, path);
    return with_grid(y, GridKind::kGrid, path, scale, zero_point);
  });
}

void PreparedImpl::train(bool on) {
  torch::nn::Module::train(on);
  float_->train(on);
}

void PreparedImpl::to(torch::Device device, torch::Dtype dtype, bool non_blocking) {
  torch::nn::Module::to(device, dtype, non_blocking);
  restore_counter(float_->bn().get());
}

void PreparedImpl::to(torch::Dtype dtype, bool non_blocking) {
  torch::nn::Module::to(dtype, non_blocking);
  restore_counter(float_->bn().get());
}

void PreparedImpl::to(torch::Device device, bool non_blocking) {
  torch::nn::Module::to(device, non_blocking);
}

std::shared_ptr<PreparedImpl> PreparedImpl::blank() const {
  const std::shared_ptr<FusedImpl> group_of_layer = float_->blank();
  auto copy = std::make_shared<PreparedImpl>(*group_of_layer, qconfig_);
  copy->weight_fake_quant_enabled = weight_fake_quant_enabled;
  return copy;
}

void PreparedImpl::rebind() {
  if (quantizer_ != nullptr) find_child(*this, "activation_post_process", quantizer_);
  if (float_->bn() == nullptr) return;
  std::shared_ptr<torch::nn::Module> bn;
  find_child(*this, "bn", bn);
  auto group_of_layer =
      std::make_shared<FusedImpl>(spec().variant, float_->base(), bn, float_->frozen());
  take_place(*group_of_layer, *this);
  float_ = std::move(group_of_layer);
}

void PreparedImpl::pretty_print(std::ostream& stream) const {
  stream << "horizon::nn::Prepared" << spec().name() << spec().arguments;
}

}  // namespace horizon::nn
