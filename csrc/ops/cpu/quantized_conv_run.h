#pragma once

#include <ATen/core/Tensor.h>

#include "ops/conv_weights.h"
#include "ops/cpu/kernels/codes.h"

namespace horizon::ops {

/// One convolution on NHWC codes. Linear is a 1x1 convolution of one pixel a row.
struct ConvProblem {
  WeightShape weight;
  WeightLayout layout;
  const int8_t* packed;  ///< weights in that layout
  int64_t batch, height, width, in_channels;
  int64_t out_height, out_width;
  std::array<int64_t, 2> stride, dilation;
  std::array<int64_t, 2> padding;  ///< top, left
  const uint8_t* input;            ///< [batch, height, width, in_channels]
  int32_t input_zero_point;
};

/// Where sums go. Exactly one output is given: [batch, out_height, out_width, out_channels].
struct ConvOutput {
  cpu::ConvEpilogue epilogue;  ///< but for `correction`; vectors of all output channels
  uint8_t* codes = nullptr;
  float* values = nullptr;
};

/// Runs it on all of at::parallel_for's threads.
void run_quantized_conv(const ConvProblem& problem, const ConvOutput& output);

}  // namespace horizon::ops
