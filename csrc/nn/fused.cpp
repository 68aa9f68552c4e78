#include "nn/fused.h"

#include <ATen/ops/conv_transpose2d.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/relu6.h>

#include "nn/members.h"
#include "nn/state.h"

namespace horizon::nn {
namespace {

const torch::nn::Module& checked(const std::shared_ptr<torch::nn::Module>& base) {
  TORCH_CHECK_VALUE(base != nullptr, "a fused group: 'base' must be a module, got null");
  return *base;
}

}  // namespace

FusedImpl::FusedImpl(const fuse::Variant& variant, std::shared_ptr<torch::nn::Module> base,
                     std::shared_ptr<torch::nn::Module> bn, bool frozen)
    : spec_(describe_group(checked(base), variant)),
      base_(std::move(base)),
      bn_(std::move(bn)),
      frozen_(frozen) {
  TORCH_CHECK_VALUE((bn_ != nullptr) == variant.batch_norm, spec_.name(), ": 'bn' must ",
                    variant.batch_norm ? "be a batch norm, got null" : "be null, got a module");
  const auto [weight, bias] = base_tensors(*base_);
  register_parameter("weight", weight, weight.requires_grad());
  register_parameter("bias", bias, bias.defined() && bias.requires_grad());
  torch::nn::Module::train(base_->is_training());
  if (bn_ == nullptr) return;
  const int64_t features = norm_tensors(*bn_).running_mean.defined()
                               ? norm_tensors(*bn_).running_mean.size(0)
                               : spec_.out_channels;
  TORCH_CHECK_VALUE(features == spec_.out_channels, spec_.name(), ": 'bn' must normalize ",
                    spec_.out_channels, " channels, got ", features);
  register_module("bn", bn_);
}

at::Tensor FusedImpl::compute(const Operands& operands, bool add_relu) {
  at::Tensor z = operands.output_size ? resized(operands) : call(*base_, operands.source);
  if (bn_ != nullptr) {
    TORCH_CHECK_VALUE(spec_.base != 2 || z.dim() == 2, label(),
                      ": 'input' must be 2-D, [N, features], for a linear layer fused with "
                      "BatchNorm1d, got ",
                      z.dim(), " dimensions");
    z = call(*bn_, z);
  }
  if (variant().add) z = z + (operands.skip ? *operands.skip : z);
  switch (spec_.activation(add_relu)) {
    case 1:
      return at::relu(z);
    case 2:
      return at::relu6(z);
    default:
      return z;
  }
}

at::Tensor FusedImpl::resized(const Operands& operands) const {
  const auto [weight, bias] = base_tensors(*base_);
  return at::conv_transpose2d(operands.source, weight, maybe(bias), spec_.stride, spec_.padding,
                              spec_.output_padding_for(operands.source, operands.output_size),
                              spec_.groups, spec_.dilation);
}

void FusedImpl::train(bool on) {
  torch::nn::Module::train(on);
  base_->train(on);
  if (bn_ != nullptr && frozen_) bn_->eval();
}

void FusedImpl::freeze_statistics(bool frozen) {
  frozen_ = frozen;
  if (bn_ != nullptr) bn_->train(is_training() && !frozen);
}

void FusedImpl::to(torch::Device device, torch::Dtype dtype, bool non_blocking) {
  torch::nn::Module::to(device, dtype, non_blocking);
  restore_counter(bn_.get());
}

void FusedImpl::to(torch::Dtype dtype, bool non_blocking) {
  torch::nn::Module::to(dtype, non_blocking);
  restore_counter(bn_.get());
}

void FusedImpl::to(torch::Device device, bool non_blocking) {
  torch::nn::Module::to(device, non_blocking);
}

std::shared_ptr<FusedImpl> FusedImpl::blank() const {
  return std::make_shared<FusedImpl>(variant(), blank_like(*base_),
                                     bn_ == nullptr ? nullptr : blank_like(*bn_), frozen_);
}

void FusedImpl::rebind() {
  if (bn_ != nullptr) find_child(*this, "bn", bn_);
}

void FusedImpl::pretty_print(std::ostream& stream) const {
  stream << "horizon::nn::" << spec_.name() << spec_.arguments;
  if (frozen_) stream << " (batch norm frozen)";
}

}  // namespace horizon::nn
