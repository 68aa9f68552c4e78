#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "ops/quantized_conv_check.h"

namespace horizon::ops {
namespace {

at::Tensor quantized_conv_meta(const at::Tensor& input, const at::Tensor& input_scale,
                               const at::Tensor& input_zero_point, const at::Tensor& weight,
                               const at::Tensor& weight_scale, const at::Tensor& factor,
                               const at::Tensor& offset, const std::optional<at::Tensor>& skip,
                               const std::optional<at::Tensor>& skip_scale,
                               const std::optional<at::Tensor>& skip_zero_point,
                               const std::optional<at::Tensor>& output_scale,
                               const std::optional<at::Tensor>& output_zero_point, int64_t base,
                               at::IntArrayRef stride, at::IntArrayRef padding,
                               at::IntArrayRef dilation, at::IntArrayRef output_padding,
                               int64_t groups, int64_t activation) {
  const QuantizedConvShape shape = check_quantized_conv(
      {input, input_scale, input_zero_point, weight, weight_scale, factor, offset, skip, skip_scale,
       skip_zero_point, output_scale, output_zero_point, base, stride, padding, dilation,
       output_padding, groups, activation});
  const at::ScalarType type = output_scale.has_value() ? at::kByte : at::kFloat;
  return at::empty_symint(shape.result, input.options().dtype(type), shape.format);
}

}  // namespace
}  // namespace horizon::ops

TORCH_LIBRARY_IMPL(horizon, Meta, m) {
  m.impl("quantized_conv", TORCH_FN(horizon::ops::quantized_conv_meta));
}
