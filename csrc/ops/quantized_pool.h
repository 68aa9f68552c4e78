#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <optional>

namespace horizon::ops {

/// Average pooling on codes: nn.AvgPool2d's windows and divisors. Padding counts as zero.
///
/// `q`: uint8 codes [channels, height, width] or [batch, channels, height, width]; scales: float
/// 0-d; zero points: int 0-d, as stored (0..255); `kernel_size`, `stride` (empty: the kernel's),
/// `padding` (at most half the kernel): one or two entries. Returns uint8 codes in q's memory
/// format. Raises ValueError or TypeError for arguments that break these rules.
at::Tensor quantized_avg_pool2d(const at::Tensor& q, const at::Tensor& q_scale,
                                const at::Tensor& q_zero_point, at::IntArrayRef kernel_size,
                                at::IntArrayRef stride, at::IntArrayRef padding, bool ceil_mode,
                                bool count_include_pad, std::optional<int64_t> divisor_override,
                                const at::Tensor& scale, const at::Tensor& zero_point);

/// Adaptive average pooling on codes, with nn.AdaptiveAvgPool2d's windows; `output_size` has two
/// entries.
at::Tensor quantized_adaptive_avg_pool2d(const at::Tensor& q, const at::Tensor& q_scale,
                                         const at::Tensor& q_zero_point,
                                         at::IntArrayRef output_size, const at::Tensor& scale,
                                         const at::Tensor& zero_point);

/// The mean of codes over `dim` (negative allowed; empty: all dimensions), as torch.mean.
at::Tensor quantized_mean(const at::Tensor& q, const at::Tensor& q_scale,
                          const at::Tensor& q_zero_point, at::IntArrayRef dim, bool keepdim,
                          const at::Tensor& scale, const at::Tensor& zero_point);

/// The checked arguments of a pooling, whose result is [.., channels, height, width].
struct QuantizedPoolShape {
  std::array<int64_t, 2> kernel, stride, padding;
  std::array<int64_t, 2> dilation{1, 1};
  c10::SymDimVector sizes;
  at::MemoryFormat format;
};

struct QuantizedMeanShape {
  std::vector<bool> reduced;  ///< per dimension of q
  c10::SymDimVector sizes;
  c10::SymInt count;  ///< how many codes a mean is over
  at::MemoryFormat format;
};

/// These check everything but the values of tensors; for the backends.
QuantizedPoolShape check_quantized_avg_pool2d(
    const at::Tensor& q, const at::Tensor& q_scale, const at::Tensor& q_zero_point,
    at::IntArrayRef kernel_size, at::IntArrayRef stride, at::IntArrayRef padding, bool ceil_mode,
    std::optional<int64_t> divisor_override, const at::Tensor& scale, const at::Tensor& zero_point);
QuantizedPoolShape check_quantized_adaptive_avg_pool2d(
    const at::Tensor& q, const at::Tensor& q_scale, const at::Tensor& q_zero_point,
    at::IntArrayRef output_size, const at::Tensor& scale, const at::Tensor& zero_point);
QuantizedMeanShape check_quantized_mean(const at::Tensor& q, const at::Tensor& q_scale,
                                        const at::Tensor& q_zero_point, at::IntArrayRef dim,
                                        bool keepdim, const at::Tensor& scale,
                                        const at::Tensor& zero_point);

}  // namespace horizon::ops
