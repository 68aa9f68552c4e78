#include "ops/quantized_conv.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace horizon::ops {

at::Tensor quantized_conv(const at::Tensor& input, const at::Tensor& input_scale,
                          const at::Tensor& input_zero_point, const at::Tensor& weight,
                          const at::Tensor& weight_scale, const at::Tensor& factor,
                          const at::Tensor& offset, const std::optional<at::Tensor>& skip,
                          const std::optional<at::Tensor>& skip_scale,
                          const std::optional<at::Tensor>& skip_zero_point,
                          const std::optional<at::Tensor>& output_scale,
                          const std::optional<at::Tensor>& output_zero_point, int64_t base,
                          at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                          at::IntArrayRef output_padding, int64_t groups, int64_t activation) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("horizon::quantized_conv", "")
                             .typed<decltype(quantized_conv)>();
  return op.call(input, input_scale, input_zero_point, weight, weight_scale, factor, offset, skip,
                 skip_scale, skip_zero_point, output_scale, output_zero_point, base, stride,
                 padding, dilation, output_padding, groups, activation);
}

at::Tensor quantized_conv_packed(
    const at::Tensor& input, const at::Tensor& input_scale, const at::Tensor& input_zero_point,
    const at::Tensor& packed, at::IntArrayRef weight_size, const at::Tensor& weight_scale,
    const at::Tensor& factor, const at::Tensor& offset, const std::optional<at::Tensor>& skip,
    const std::optional<at::Tensor>& skip_scale, const std::optional<at::Tensor>& skip_zero_point,
    const std::optional<at::Tensor>& output_scale,
    const std::optional<at::Tensor>& output_zero_point, int64_t base, at::IntArrayRef stride,
    at::IntArrayRef padding, at::IntArrayRef dilation, at::IntArrayRef output_padding,
    int64_t groups, int64_t activation) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("horizon::quantized_conv_packed", "")
                             .typed<decltype(quantized_conv_packed)>();
  return op.call(input, input_scale, input_zero_point, packed, weight_size, weight_scale, factor,
                 offset, skip, skip_scale, skip_zero_point, output_scale, output_zero_point, base,
                 stride, padding, dilation, output_padding, groups, activation);
}

}  // namespace horizon::ops

TORCH_LIBRARY_FRAGMENT(horizon, m) {
  m.def(
      "quantized_conv(Tensor input, Tensor input_scale, Tensor input_zero_point, Tensor weight, "
      "Tensor weight_scale, Tensor factor, Tensor offset, Tensor? skip, Tensor? skip_scale, "
      "Tensor? skip_zero_point, Tensor? output_scale, Tensor? output_zero_point, int base, "
      "int[] stride, int[] padding, int[] dilation, int[] output_padding, int groups, "
      "int activation) -> Tensor");
  m.def(
      "quantized_conv_packed(Tensor input, Tensor input_scale, Tensor input_zero_point, "
      "Tensor packed, int[] weight_size, Tensor weight_scale, Tensor factor, Tensor offset, "
      "Tensor? skip, Tensor? skip_scale, Tensor? skip_zero_point, Tensor? output_scale, "
      "Tensor? output_zero_point, int base, int[] stride, int[] padding, int[] dilation, "
      "int[] output_padding, int groups, int activation) -> Tensor");
}
