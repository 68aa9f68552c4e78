#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "ops/quantized_conv_check.h"

namespace horizon::ops {
namespace {

at::Tensor empty_result(const QuantizedConvArguments& args) {
  const QuantizedConvShape shape = check_quantized_conv(args);
  const at::ScalarType type = args.output_scale.has_value() ? at::kByte : at::kFloat;
  return at::empty_symint(shape.result, args.input.options().dtype(type), shape.format);
}

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
  return empty_result({input,
                       input_scale,
                       input_zero_point,
                       weight,
                       std::nullopt,
                       weight_scale,
                       factor,
                       offset,
                       skip,
                       skip_scale,
                       skip_zero_point,
                       output_scale,
                       output_zero_point,
                       base,
                       stride,
                       padding,
                       dilation,
                       output_padding,
                       groups,
                       activation});
}

at::Tensor quantized_conv_packed_meta(
    const at::Tensor& input, const at::Tensor& input_scale, const at::Tensor& input_zero_point,
    const at::Tensor& packed, at::IntArrayRef weight_size, const at::Tensor& weight_scale,
    const at::Tensor& factor, const at::Tensor& offset, const std::optional<at::Tensor>& skip,
    const std::optional<at::Tensor>& skip_scale, const std::optional<at::Tensor>& skip_zero_point,
    const std::optional<at::Tensor>& output_scale,
    const std::optional<at::Tensor>& output_zero_point, int64_t base, at::IntArrayRef stride,
    at::IntArrayRef padding, at::IntArrayRef dilation, at::IntArrayRef output_padding,
    int64_t groups, int64_t activation) {
  return empty_result({input,
                       input_scale,
                       input_zero_point,
                       packed,
                       weight_size,
                       weight_scale,
                       factor,
                       offset,
                       skip,
                       skip_scale,
                       skip_zero_point,
                       output_scale,
                       output_zero_point,
                       base,
                       stride,
                       padding,
                       dilation,
                       output_padding,
                       groups,
                       activation});
}

at::Tensor pack_weight_meta(const at::Tensor& weight, int64_t base, at::IntArrayRef stride,
                            at::IntArrayRef dilation, int64_t groups) {
  check_pack_weight(weight, base, stride, dilation, groups);
  const auto shape = weight_shape(weight.sizes(), base, stride, dilation, groups);
  return at::empty({weight_layout(shape).bytes}, weight.options());
}

at::Tensor unpack_weight_meta(const at::Tensor& packed, at::IntArrayRef weight_size, int64_t base,
                              at::IntArrayRef stride, at::IntArrayRef dilation, int64_t groups) {
  check_packed_weight("unpack_weight", packed, weight_size, base, stride, dilation, groups);
  return at::empty(weight_size, packed.options());
}

}  // namespace
}  // namespace horizon::ops

TORCH_LIBRARY_IMPL(horizon, Meta, m) {
  m.impl("quantized_conv", TORCH_FN(horizon::ops::quantized_conv_meta));
  m.impl("quantized_conv_packed", TORCH_FN(horizon::ops::quantized_conv_packed_meta));
  m.impl("pack_weight", TORCH_FN(horizon::ops::pack_weight_meta));
  m.impl("unpack_weight", TORCH_FN(horizon::ops::unpack_weight_meta));
}
