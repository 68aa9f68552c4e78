#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "ops/cpu/kernels/codes.h"
#include "ops/quantized_conv_check.h"

namespace horizon::ops {

/// One convolution on NHWC codes. Linear is a 1x1 convolution of one pixel a row.
struct ConvProblem {
  int64_t base, groups;
  int64_t batch, height, width, in_channels;
  int64_t out_height, out_width, out_channels;
  std::array<int64_t, 2> kernel, stride, dilation;
  std::array<int64_t, 2> padding;  ///< top, left
  const uint8_t* input;            ///< [batch, height, width, in_channels]
  int32_t input_zero_point;
  at::Tensor weight;  ///< int8 [out_channels, kernel, kernel, in_channels / groups], contiguous
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
