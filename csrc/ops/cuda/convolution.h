#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "ops/fused.h"

// Convolutions of the training op on CUDA. Geometry is that of `FusedBackwardArgs` (base, stride,
// padding of two or four sides, dilation, output_padding, groups); its tensors are not read.
namespace horizon::ops::cuda {

/// Float accumulators Σ (q - zero_point) · w of stored codes, without a scale.
///
/// codes: uint8, [N, C, H, W] or what Linear takes, in the layout asked for. zero_point: int32, one
/// element, on the device, as stored. weight_codes: int8 in the weight's shape. Returns float32 of
/// z's sizes, dense, channels last if asked for. Padding contributes 0. The result is the integer
/// sum where Σ |w| max|q - z| of an output is at most 2^24, and in any case within the rounding of
/// an fp32 sum; never through a transformed domain (Winograd, FFT). Does not synchronize.
at::Tensor convolve_centred_codes(const FusedBackwardArgs& geometry, const at::Tensor& codes,
                                  const at::Tensor& zero_point, const at::Tensor& weight_codes,
                                  bool channels_last);

/// z of float values, in their dtype: convolution and bias, as the user's settings allow (TF32,
/// deterministic algorithms). `values` and `weight` have one dtype.
at::Tensor convolve_values(const FusedBackwardArgs& geometry, const at::Tensor& values,
                           const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                           bool channels_last);

}  // namespace horizon::ops::cuda
