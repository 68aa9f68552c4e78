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

ConvertedImpl::ConvertedImpl(GroupSpec spec, at::IntArrayRef weight_size, torch::Device device,
                             bool quantizes_output, at::ScalarType output_dtype)
    : spec_(std::move(spec)), output_dtype_(output_dtype), weight_size_(weight_size.vec()) {
  const auto options = at::TensorOptions(device);
  const int64_t channels = spec_.out_channels;
  packed_ =
      register_buffer("packed_weight", packed(at::zeros(weight_size, options.dtype(at::kChar))));
  weight_scale_ = register_buffer("weight_scale", at::ones({channels}, options.dtype(at::kFloat)));
  bn_scale_ = register_buffer("bn_scale", at::ones({channels}, options.dtype(at::kDouble)));
  bias_ = register_buffer("bias", at::zeros({channels}, options.dtype(at::kDouble)));
  if (quantizes_output) std::tie(scale_, zero_point_) = register_grid(*this);
  torch::nn::Module::train(false);
}

at::Tensor ConvertedImpl::packed(const at::Tensor& codes) const {
  return ops::pack_weight(codes, spec_.base, spec_.stride, spec_.dilation, spec_.groups);
}

at::Tensor ConvertedImpl::weight() const {
  return ops::unpack_weight(packed_, weight_size_, spec_.base, spec_.stride, spec_.dilation,
                            spec_.groups);
}

void ConvertedImpl::save(torch::serialize::OutputArchive& archive) const {
  for (const auto& [name, tensor] : state_dict(*this)) {
    archive.write(name, tensor, /*is_buffer=*/true);
  }
}

void ConvertedImpl::load(torch::serialize::InputArchive& archive) {
  std::map<std::string, at::Tensor> state = state_dict(*this);
  for (auto& [name, tensor] : state) {
    at::Tensor read;
    archive.read(name, read, /*is_buffer=*/true);
    tensor = read;
  }
  named(path, [&] { load_state_dict(*this, state); });
}

void ConvertedImpl::save_state(const std::string& prefix,
                               std::map<std::string, at::Tensor>& state) const {
  state.erase(prefix + "packed_weight");
  state[prefix + "weight"] = weight();
}

void ConvertedImpl::load_state(const std::string& prefix,
                               const std::map<std::string, at::Tensor>& state) {
  packed_.copy_(packed(state.at(prefix + "weight").to(packed_.device())));
}

ConvertedImpl::ConvertedImpl(const PreparedImpl& source)
    : ConvertedImpl(source.spec(), base_tensors(*source.float_group()->base()).first.sizes(),
                    base_tensors(*source.float_group()->base()).first.device(),
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
  packed_.set_data(
      packed(ops::quantize_weight(weight.detach(), weight_scale, spec_.base, spec_.groups)));
  weight_scale_.set_data(weight_scale);
  bn_scale_.set_data(factor.detach());
  bias_.set_data(offset.detach());
  if (source.quantizer() != nullptr) set_grid(*source.quantizer(), scale_, zero_point_);
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
        weight_size_, weight_scale_, doubled ? bn_scale_ * 2.0 : bn_scale_,
        doubled ? bias_ * 2.0 : bias_, operands.skip, skip_scale, skip_zero_point, maybe(scale_),
        maybe(zero_point_), spec_.base, spec_.stride, spec_.padding, spec_.dilation,
        spec_.output_padding_for(operands.source, operands.output_size), spec_.groups,
        spec_.activation(add_relu));
    if (!scale_.defined()) return with_grid(y.to(output_dtype_), GridKind::kHighPrecision, path);
    return with_grid(y, GridKind::kCodes, path, scale_, zero_point_);
  });
}

std::shared_ptr<ConvertedImpl> ConvertedImpl::blank() const {
  return std::make_shared<ConvertedImpl>(spec_, weight_size_, packed_.device(), scale_.defined(),
                                         output_dtype_);
}

void ConvertedImpl::pretty_print(std::ostream& stream) const {
  stream << "horizon::nn::Quantized" << spec_.name() << spec_.arguments << " -> "
         << (scale_.defined() ? "uint8 codes" : "float32");
}

}  // namespace horizon::nn
