#include "nn/converted.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include "nn/grid.h"
#include "nn/state.h"
#include "ops/fold_batch_norm.h"
#include "ops/pack_weight.h"
#include "ops/quantized_conv.h"
#include "ops/weights.h"

namespace horizon::nn {

ConvertedImpl::ConvertedImpl(GroupSpec spec, const at::Tensor& weight_like, bool quantizes_output,
                             at::ScalarType output_dtype)
    : spec_(std::move(spec)), output_dtype_(output_dtype) {
  const auto options = weight_like.options();
  const int64_t channels = spec_.out_channels;
  weight_ = register_buffer("weight", at::zeros(weight_like.sizes(), options.dtype(at::kChar)));
  weight_scale_ = register_buffer("weight_scale", at::ones({channels}, options.dtype(at::kFloat)));
  bn_scale_ = register_buffer("bn_scale", at::ones({channels}, options.dtype(at::kDouble)));
  bias_ = register_buffer("bias", at::zeros({channels}, options.dtype(at::kDouble)));
  if (quantizes_output) std::tie(scale_, zero_point_) = register_grid(*this);
  torch::nn::Module::train(false);
  pack();
}

void ConvertedImpl::pack() {
  packed_ = ops::pack_weight(weight_, spec_.base, spec_.stride, spec_.dilation, spec_.groups);
}

void ConvertedImpl::load(torch::serialize::InputArchive& archive) {
  torch::nn::Module::load(archive);
  pack();
}

ConvertedImpl::ConvertedImpl(const PreparedImpl& source)
    : ConvertedImpl(source.spec(), base_tensors(*source.float_group()->base()).first,
                    source.quantizer() != nullptr,
                    base_tensors(*source.float_group()->base()).first.scalar_type()) {
  const torch::NoGradGuard no_grad;
  take_place(*this, source);
  const auto [weight, bias] = base_tensors(*source.float_group()->base());
  NormTensors norm;
  if (source.float_group()->bn() != nullptr) {
    norm = norm_tensors(*source.float_group()->bn());
    TORCH_CHECK_VALUE(norm.running_mean.defined(), "convert: ", path,
                      ": its batch norm has no running statistics (track_running_stats=False), so "
                      "there is nothing to deploy");
  } else {
    norm.eps = 0;
  }
  const at::Tensor weight_scale = ops::weight_scale(weight.detach(), spec_.base, spec_.groups);
  const auto [factor, offset] = ops::fold_batch_norm(
      maybe(bias), maybe(norm.weight), maybe(norm.bias), maybe(norm.running_mean),
      maybe(norm.running_var), norm.eps, spec_.out_channels);
  const std::pair<const char*, at::Tensor> constants[] = {
      {"weight", weight_scale}, {"bn_scale", factor}, {"bias", offset}};
  for (const auto& [name, value] : constants) {
    TORCH_CHECK_VALUE(value.isfinite().all().item<bool>(), "convert: ", path, ": '", name,
                      "' must be finite, got nan or inf");
  }
  weight_.set_data(ops::quantize_weight(weight.detach(), weight_scale, spec_.base, spec_.groups));
  weight_scale_.set_data(weight_scale);
  bn_scale_.set_data(factor.detach());
  bias_.set_data(offset.detach());
  if (source.quantizer() != nullptr) set_grid(*source.quantizer(), scale_, zero_point_);
  named(path, [&] { pack(); });
}

at::Tensor ConvertedImpl::compute(const Operands& operands, bool add_relu) {
  const Grid& input_grid = operand_grid(operands.source, path, "input", true);
  std::optional<at::Tensor> skip_scale, skip_zero_point;
  if (operands.skip) {
    const Grid& skip_grid = operand_grid(*operands.skip, path, "skip", true);
    skip_scale = skip_grid.scale;
    skip_zero_point = skip_grid.zero_point;
  }
  const bool doubled = spec_.variant.add && !operands.skip;
  return named(path, [&] {
    const at::Tensor y = ops::quantized_conv_packed(
        spec_.padded(operands.source), input_grid.scale, input_grid.zero_point, packed_,
        weight_.sizes(), weight_scale_, doubled ? bn_scale_ * 2.0 : bn_scale_,
        doubled ? bias_ * 2.0 : bias_, operands.skip, skip_scale, skip_zero_point, maybe(scale_),
        maybe(zero_point_), spec_.base, spec_.stride, spec_.padding, spec_.dilation,
        spec_.output_padding, spec_.groups, spec_.activation(add_relu));
    if (!scale_.defined()) return with_grid(y.to(output_dtype_), GridKind::kHighPrecision, path);
    return with_grid(y, GridKind::kCodes, path, scale_, zero_point_);
  });
}

std::shared_ptr<ConvertedImpl> ConvertedImpl::blank() const {
  return std::make_shared<ConvertedImpl>(spec_, weight_, scale_.defined(), output_dtype_);
}

void ConvertedImpl::pretty_print(std::ostream& stream) const {
  stream << "horizon::nn::Quantized" << spec_.name() << spec_.arguments << " -> "
         << (scale_.defined() ? "uint8 codes" : "float32");
}

}  // namespace horizon::nn
