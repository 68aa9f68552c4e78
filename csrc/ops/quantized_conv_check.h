#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <optional>

#include "quant/requantize.h"

namespace horizon::ops {

inline constexpr int64_t kBaseConv = 0;
inline constexpr int64_t kBaseConvTranspose = 1;
inline constexpr int64_t kBaseLinear = 2;
inline constexpr int64_t kBaseCount = 3;

/// The arguments of quantized_conv; see quantized_conv.h.
struct QuantizedConvArguments {
  const at::Tensor &input, &input_scale, &input_zero_point;
  const at::Tensor &weight, &weight_scale, &factor, &offset;
  const std::optional<at::Tensor>&skip, &skip_scale, &skip_zero_point;
  const std::optional<at::Tensor>&output_scale, &output_zero_point;
  int64_t base;
  at::IntArrayRef stride, padding, dilation, output_padding;
  int64_t groups, activation;
};

/// What the checked arguments mean. Linear is a 1x1 convolution of one pixel a row.
struct QuantizedConvShape {
  bool batched;  ///< false: a 3-d image
  std::array<int64_t, 2> stride, dilation, output_padding;
  std::array<int64_t, 4> padding;  ///< top, left, bottom, right
  quant::Activation activation;
  c10::SymInt out_channels;
  c10::SymDimVector output;  ///< of the convolution, with the input's number of dimensions
  c10::SymDimVector result;  ///< after the skip's broadcast
  at::MemoryFormat format;   ///< of the result
};

/// Checks dtypes, devices, shapes and options, but no value of a tensor.
QuantizedConvShape check_quantized_conv(const QuantizedConvArguments& args);

}  // namespace horizon::ops
