#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <optional>

#include "ops/conv_weights.h"
#include "quant/requantize.h"

namespace horizon::ops {

/// The arguments of quantized_conv, or of quantized_conv_packed; see quantized_conv.h.
struct QuantizedConvArguments {
  const at::Tensor &input, &input_scale, &input_zero_point;
  const at::Tensor& weight;                    ///< codes, or their packed form
  std::optional<at::IntArrayRef> weight_size;  ///< of the codes, given with the packed form
  const at::Tensor &weight_scale, &factor, &offset;
  const std::optional<at::Tensor>&skip, &skip_scale, &skip_zero_point;
  const std::optional<at::Tensor>&output_scale, &output_zero_point;
  int64_t base;
  at::IntArrayRef stride, padding, dilation, output_padding;
  int64_t groups, activation;

  /// The operator's name.
  const char* op() const {
    return weight_size.has_value() ? "quantized_conv_packed" : "quantized_conv";
  }
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

/// Checks the arguments of pack_weight: `weight` int8 codes.
void check_pack_weight(const at::Tensor& weight, int64_t base, at::IntArrayRef stride,
                       at::IntArrayRef dilation, int64_t groups);

/// Checks the arguments of `op` that describe a packed weight, and its size.
WeightShape check_packed_weight(const char* op, const at::Tensor& packed,
                                at::IntArrayRef weight_size, int64_t base, at::IntArrayRef stride,
                                at::IntArrayRef dilation, int64_t groups);

}  // namespace horizon::ops
