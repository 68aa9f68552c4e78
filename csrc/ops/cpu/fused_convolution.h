#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

#include "ops/fused.h"

namespace horizon::ops {

/// z of a group, laid out as `channels_last` says; `input` is 4-D or what Linear takes.
at::Tensor convolve(const FusedBackwardArgs& conv, const at::Tensor& input,
                    const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                    bool channels_last);

/// Gradients of input and weight (the first two of `conv.needs`) from that of z.
std::tuple<at::Tensor, at::Tensor> convolve_backward(const FusedBackwardArgs& conv,
                                                     const at::Tensor& grad_z,
                                                     const at::Tensor& input,
                                                     const at::Tensor& weight);

inline at::MemoryFormat memory_format(bool channels_last) {
  return channels_last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
}

}  // namespace horizon::ops
