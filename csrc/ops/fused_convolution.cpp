#include "ops/fused_convolution.h"

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>

#include "ops/weights.h"

namespace horizon::ops {
namespace {

/// Padding as at::convolution takes it, and what must be padded before.
struct Padding {
  explicit Padding(const std::vector<int64_t>& p) : inner{p[0], p[1]} {
    if (p.size() == 4 && (p[0] != p[2] || p[1] != p[3])) {
      inner = {0, 0};
      outer = {p[1], p[3], p[0], p[2]};
    }
  }
  at::Tensor pad(const at::Tensor& x) const {
    return outer.empty() ? x : at::constant_pad_nd(x, outer, 0);
  }
  at::Tensor crop(const at::Tensor& x) const {
    if (outer.empty()) return x;
    return x.narrow(3, outer[0], x.size(3) - outer[0] - outer[1])
        .narrow(2, outer[2], x.size(2) - outer[2] - outer[3]);
  }

  std::vector<int64_t> inner;
  std::vector<int64_t> outer;  ///< left, right, top, bottom
};

}  // namespace

at::Tensor convolve(const FusedBackwardArgs& conv, const at::Tensor& input,
                    const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                    bool channels_last) {
  if (static_cast<Base>(conv.base) == Base::kLinear) {
    return at::linear(input, weight, bias).contiguous();
  }
  const Padding padding(conv.padding);
  const bool transposed = static_cast<Base>(conv.base) == Base::kConvTranspose2d;
  return at::convolution(padding.pad(input), weight, bias, conv.stride, padding.inner,
                         conv.dilation, transposed, conv.output_padding, conv.groups)
      .contiguous(memory_format(channels_last));
}

std::tuple<at::Tensor, at::Tensor> convolve_backward(const FusedBackwardArgs& conv,
                                                     const at::Tensor& grad_z,
                                                     const at::Tensor& input,
                                                     const at::Tensor& weight) {
  if (static_cast<Base>(conv.base) == Base::kLinear) {
    const at::Tensor grad = grad_z.reshape({-1, weight.size(0)});
    at::Tensor grad_input, grad_weight;
    if (conv.needs[0]) grad_input = at::mm(grad, weight).reshape(input.sizes());
    if (conv.needs[1]) grad_weight = at::mm(grad.t(), input.reshape({-1, weight.size(1)}));
    return {grad_input, grad_weight};
  }
  const Padding padding(conv.padding);
  const bool transposed = static_cast<Base>(conv.base) == Base::kConvTranspose2d;
  auto [grad_input, grad_weight, grad_bias] = at::convolution_backward(
      grad_z, padding.pad(input), weight, at::OptionalIntArrayRef(), conv.stride, padding.inner,
      conv.dilation, transposed, conv.output_padding, conv.groups,
      {conv.needs[0], conv.needs[1], false});
  if (conv.needs[0]) grad_input = padding.crop(grad_input);
  return {grad_input, grad_weight};
}

}  // namespace horizon::ops
