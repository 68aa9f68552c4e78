// A batch norm on its own, between two quantized layers.
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/modules/batchnorm.h>

#include "nn/group.h"
#include "nn/members.h"
#include "nn/state.h"
#include "nn/unary.h"
#include "ops/fold_batch_norm.h"
#include "ops/quantized_affine.h"

namespace horizon::nn {
namespace {

int64_t channels_of(const torch::nn::Module& bn) {
  if (const auto* two = dynamic_cast<const torch::nn::BatchNorm2dImpl*>(&bn)) {
    return two->options.num_features();
  }
  return dynamic_cast<const torch::nn::BatchNorm1dImpl&>(bn).options.num_features();
}

std::tuple<at::Tensor, at::Tensor> constants_of(const torch::nn::Module& bn) {
  const torch::NoGradGuard no_grad;
  const NormTensors norm = norm_tensors(bn);
  return ops::fold_batch_norm(std::nullopt, maybe(norm.weight), maybe(norm.bias),
                              maybe(norm.running_mean), maybe(norm.running_var), norm.eps,
                              channels_of(bn));
}

UnaryOp describe(const std::shared_ptr<torch::nn::Module>& bn) {
  UnaryOp op{[bn](const at::Tensor& x) { return call(*bn, x); }, {}, text_of(*bn)};
  if (!norm_tensors(*bn).running_mean.defined()) return op;
  op.on_codes = [bn](const at::Tensor& q, const at::Tensor& s, const at::Tensor& z,
                     const at::Tensor& out_s, const at::Tensor& out_z) {
    const auto [factor, offset] = constants_of(*bn);
    return ops::quantized_affine(q, s, z, factor, offset, out_s, out_z, 0);
  };
  return op;
}

}  // namespace

PreparedBatchNormImpl::PreparedBatchNormImpl(std::shared_ptr<torch::nn::Module> bn,
                                             const QConfig& qconfig, bool frozen)
    : LayerOf(describe(bn), qconfig), bn_(std::move(bn)), frozen_(frozen) {
  const NormTensors norm = norm_tensors(*bn_);
  register_parameter("weight", norm.weight, norm.weight.defined() && norm.weight.requires_grad());
  register_parameter("bias", norm.bias, norm.bias.defined() && norm.bias.requires_grad());
  register_buffer("running_mean", norm.running_mean);
  register_buffer("running_var", norm.running_var);
  register_buffer("num_batches_tracked", norm.num_batches_tracked);
  torch::nn::Module::train(bn_->is_training());
}

void PreparedBatchNormImpl::train(bool on) {
  torch::nn::Module::train(on);
  bn_->train(on && !frozen_);
}

void PreparedBatchNormImpl::freeze_statistics(bool frozen) {
  frozen_ = frozen;
  bn_->train(is_training() && !frozen);
}

void PreparedBatchNormImpl::to(torch::Device device, torch::Dtype dtype, bool non_blocking) {
  torch::nn::Module::to(device, dtype, non_blocking);
  restore_counter(bn_.get());
}

void PreparedBatchNormImpl::to(torch::Dtype dtype, bool non_blocking) {
  torch::nn::Module::to(dtype, non_blocking);
  restore_counter(bn_.get());
}

void PreparedBatchNormImpl::to(torch::Device device, bool non_blocking) {
  torch::nn::Module::to(device, non_blocking);
}

std::shared_ptr<PreparedBatchNormImpl> PreparedBatchNormImpl::blank() const {
  return std::make_shared<PreparedBatchNormImpl>(blank_like(*bn_), qconfig(), frozen_);
}

ConvertedBatchNormImpl::ConvertedBatchNormImpl(int64_t channels, std::string text)
    : LayerOf(UnaryOp{}) {
  factor_ = register_buffer("bn_scale", at::ones({channels}, at::kDouble));
  offset_ = register_buffer("bias", at::zeros({channels}, at::kDouble));
  op_.text = std::move(text);
  op_.on_codes = [factor = factor_, offset = offset_](const at::Tensor& q, const at::Tensor& s,
                                                      const at::Tensor& z, const at::Tensor& out_s,
                                                      const at::Tensor& out_z) {
    return ops::quantized_affine(q, s, z, factor, offset, out_s, out_z, 0);
  };
}

ConvertedBatchNormImpl::ConvertedBatchNormImpl(const PreparedBatchNormImpl& source)
    : ConvertedBatchNormImpl(channels_of(*source.bn()), source.op().text) {
  take_place(*this, source);
  TORCH_CHECK_VALUE(norm_tensors(*source.bn()).running_mean.defined(), "convert: ", path,
                    ": the batch norm has no running statistics (track_running_stats=False), so "
                    "there is nothing to deploy");
  const auto [factor, offset] = constants_of(*source.bn());
  TORCH_CHECK_VALUE(factor.isfinite().all().item<bool>() && offset.isfinite().all().item<bool>(),
                    "convert: ", path, ": 'bn_scale' and 'bias' must be finite, got nan or inf");
  factor_.set_data(factor);
  offset_.set_data(offset);
  set_grid(*source.quantizer(), scale_, zero_point_);
}

std::shared_ptr<ConvertedBatchNormImpl> ConvertedBatchNormImpl::blank() const {
  return std::make_shared<ConvertedBatchNormImpl>(factor_.numel(), op().text);
}

}  // namespace horizon::nn
