#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

#include "ops/fused.h"
#include "ops/weights.h"

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

/// An image with a batch dimension.
inline at::Tensor batched(const at::Tensor& x, int64_t base) {
  return static_cast<Base>(base) != Base::kLinear && x.dim() == 3 ? x.unsqueeze(0) : x;
}

inline at::Tensor laid_out(const at::Tensor& x, bool channels_last) {
  return x.contiguous(memory_format(channels_last && x.dim() == 4));
}

}  // namespace horizon::ops
