#include "nn/group.h"

#include <ATen/ops/pad.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <sstream>
#include <typeinfo>

#include "nn/layer.h"
#include "ops/fold_batch_norm.h"

namespace horizon::nn {
namespace {

using Pair = torch::ExpandingArray<2>;

std::vector<int64_t> to_list(const Pair& pair) { return {(*pair)[0], (*pair)[1]}; }

// Amounts in the order of at::pad, last dimension first: left, right, top, bottom.
std::vector<int64_t> pad_amounts(const torch::nn::detail::ConvNdOptions<2>& options) {
  if (const auto* pad = std::get_if<Pair>(&options.padding())) {
    const auto [h, w] = **pad;
    return {w, w, h, h};
  }
  if (std::holds_alternative<torch::enumtype::kValid>(options.padding())) return {0, 0, 0, 0};
  std::vector<int64_t> amounts;
  for (const std::size_t axis : {std::size_t{1}, std::size_t{0}}) {
    const int64_t total = (*options.dilation())[axis] * ((*options.kernel_size())[axis] - 1);
    amounts.push_back(total / 2);
    amounts.push_back(total - total / 2);
  }
  return amounts;
}

template <class Options>
void describe_convolution(const Options& options, GroupSpec& spec) {
  spec.out_channels = options.out_channels();
  spec.kernel_size = to_list(options.kernel_size());
  spec.stride = to_list(options.stride());
  spec.dilation = to_list(options.dilation());
  spec.output_padding = to_list(options.output_padding());
  spec.groups = options.groups();
  const std::vector<int64_t> amounts = pad_amounts(options);
  if (!std::holds_alternative<torch::enumtype::kZeros>(options.padding_mode())) {
    spec.pads = amounts;
    spec.pad_mode =
        std::visit(c10::overloaded([](torch::enumtype::kReflect) { return "reflect"; },
                                   [](torch::enumtype::kReplicate) { return "replicate"; },
                                   [](torch::enumtype::kCircular) { return "circular"; },
                                   [](torch::enumtype::kZeros) { return "constant"; }),
                   options.padding_mode());
  } else if (amounts[0] == amounts[1] && amounts[2] == amounts[3]) {
    spec.padding = {amounts[2], amounts[0]};
  } else {
    spec.padding = {amounts[2], amounts[0], amounts[3], amounts[1]};
  }
}

std::string arguments_of(const torch::nn::Module& base) {
  std::ostringstream stream;
  base.pretty_print(stream);
  const std::string text = stream.str();
  const std::size_t open = text.find('(');
  return open == std::string::npos ? "()" : text.substr(open);
}

at::Tensor per_output_channel(const at::Tensor& factor, const at::Tensor& weight, int64_t base,
                              int64_t groups) {
  if (base == 2) return factor.view({-1, 1});
  if (base == 0) return factor.view({-1, 1, 1, 1});
  // Weights are [in, out / groups, kh, kw], and channel c of group g is g * (out / groups) + c.
  return factor.view({groups, 1, -1})
      .expand({-1, weight.size(0) / groups, -1})
      .reshape({weight.size(0), -1, 1, 1});
}

}  // namespace

int64_t GroupSpec::activation(bool add_relu) const {
  const auto own = static_cast<int64_t>(variant.activation);
  return add_relu && own == 0 ? 1 : own;
}

at::Tensor GroupSpec::padded(const at::Tensor& input) const {
  return pads.empty() ? input : at::pad(input, pads, pad_mode);
}

std::vector<int64_t> GroupSpec::output_padding_for(
    const at::Tensor& input, const std::optional<std::vector<int64_t>>& output_size) const {
  if (!output_size) return output_padding;
  const at::IntArrayRef size = *output_size;
  TORCH_CHECK_VALUE(
      input.dim() >= 3 && (size.size() == 2 || static_cast<int64_t>(size.size()) == input.dim()),
      "conv_transpose2d: 'output_size' must be [H, W] or of as many dimensions as "
      "the input, got ",
      size, " for an input of ", input.dim(), " dimensions");
  std::vector<int64_t> result;
  for (std::size_t i = 0; i < 2; ++i) {
    const int64_t wanted = size[size.size() - 2 + i];
    const int64_t smallest =
        (input.size(input.dim() - 2 + static_cast<int64_t>(i)) - 1) * stride[i] - 2 * padding[i] +
        dilation[i] * (kernel_size[i] - 1) + 1;
    TORCH_CHECK_VALUE(wanted >= smallest && wanted < smallest + stride[i],
                      "conv_transpose2d: 'output_size' must be in [", smallest, ", ",
                      smallest + stride[i] - 1, "] in dimension ", i, ", got ", wanted);
    result.push_back(wanted - smallest);
  }
  return result;
}

std::pair<at::Tensor, at::Tensor> base_tensors(const torch::nn::Module& base) {
  if (const auto* conv = dynamic_cast<const torch::nn::Conv2dImpl*>(&base)) {
    return {conv->weight, conv->bias};
  }
  if (const auto* conv = dynamic_cast<const torch::nn::ConvTranspose2dImpl*>(&base)) {
    return {conv->weight, conv->bias};
  }
  const auto* linear = dynamic_cast<const torch::nn::LinearImpl*>(&base);
  TORCH_CHECK_TYPE(linear != nullptr,
                   "a fused group: 'base' must be a Conv2d, ConvTranspose2d or Linear, got ",
                   class_name_of(base));
  return {linear->weight, linear->bias};
}

fuse::Kind base_kind(const torch::nn::Module& module) {
  if (typeid(module) == typeid(torch::nn::Conv2dImpl)) return fuse::Kind::kConv2d;
  if (typeid(module) == typeid(torch::nn::ConvTranspose2dImpl)) return fuse::Kind::kConvTranspose2d;
  if (typeid(module) == typeid(torch::nn::LinearImpl)) return fuse::Kind::kLinear;
  return fuse::Kind::kOther;
}

GroupSpec describe_group(const torch::nn::Module& base, const fuse::Variant& variant) {
  GroupSpec spec;
  spec.variant = variant;
  spec.arguments = arguments_of(base);
  if (const auto* conv = dynamic_cast<const torch::nn::Conv2dImpl*>(&base)) {
    describe_convolution(conv->options, spec);
  } else if (const auto* transposed = dynamic_cast<const torch::nn::ConvTranspose2dImpl*>(&base)) {
    spec.base = 1;
    describe_convolution(transposed->options, spec);
  } else {
    spec.base = 2;
    spec.out_channels = base_tensors(base).first.size(0);
  }
  return spec;
}

NormTensors norm_tensors(const torch::nn::Module& batch_norm) {
  const auto read = [](const auto& bn) {
    return NormTensors{bn.weight,
                       bn.bias,
                       bn.running_mean,
                       bn.running_var,
                       bn.num_batches_tracked,
                       bn.options.momentum(),
                       bn.options.eps()};
  };
  if (const auto* bn = dynamic_cast<const torch::nn::BatchNorm2dImpl*>(&batch_norm)) {
    return read(*bn);
  }
  const auto* bn = dynamic_cast<const torch::nn::BatchNorm1dImpl*>(&batch_norm);
  TORCH_CHECK_TYPE(bn != nullptr, "a fused group: 'bn' must be a BatchNorm1d or BatchNorm2d, got ",
                   class_name_of(batch_norm));
  return read(*bn);
}

std::optional<at::Tensor> maybe(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional<at::Tensor>(tensor) : std::nullopt;
}

std::pair<at::Tensor, at::Tensor> folded_tensors(const torch::nn::Module& base,
                                                 const torch::nn::Module& batch_norm) {
  const torch::NoGradGuard no_grad;
  const auto [weight, bias] = base_tensors(base);
  const NormTensors bn = norm_tensors(batch_norm);
  TORCH_CHECK_VALUE(bn.running_mean.device() == weight.device(),
                    "fuse_modules: a batch norm must be on the device of its layer to be folded, "
                    "got ",
                    bn.running_mean.device(), " and ", weight.device());
  const GroupSpec spec = describe_group(base, {});
  const auto [factor, offset] =
      ops::fold_batch_norm(maybe(bias), maybe(bn.weight), maybe(bn.bias), bn.running_mean,
                           bn.running_var, bn.eps, spec.out_channels);
  const at::Tensor scaled =
      weight.to(at::kDouble) * per_output_channel(factor, weight, spec.base, spec.groups);
  const at::Tensor& source = bias.defined() ? bias : bn.bias;
  at::Tensor new_weight = at::empty_like(weight).copy_(scaled);
  at::Tensor new_bias = offset.to(weight.scalar_type());
  new_weight.set_requires_grad(weight.requires_grad());
  new_bias.set_requires_grad(source.defined() ? source.requires_grad() : weight.requires_grad());
  return {new_weight, new_bias};
}

}  // namespace horizon::nn
