#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace horizon::ops {

/// A convolution group on codes: convolution, batch norm, skip, activation and requantization in
/// one integer operation (docs/numerics.md, integer inference).
///
/// `input` and `skip` are uint8 codes, `weight` int8 codes in the float weight's shape;
/// `input_scale`, `skip_scale`, `output_scale` fp32 0-d; the zero points int32 0-d, as stored
/// (0..255); `weight_scale` fp32 [out_channels]; `factor` and `offset` fp64 [out_channels] from
/// `fold_batch_norm`. `skip` broadcasts as in torch.add. `base`: 0 conv2d, 1 conv_transpose2d,
/// 2 linear (the lists are not read). `padding` has two entries, or for conv2d four: top, left,
/// bottom, right. `activation`: 0 none, 1 relu, 2 relu6.
///
/// Returns uint8 codes, or fp32 without an output scale, in the input's memory format; it never
/// requires grad. Raises ValueError or TypeError for arguments that break these rules, for sums
/// that could overflow int32, and for a requantization constant that is not finite.
at::Tensor quantized_conv(const at::Tensor& input, const at::Tensor& input_scale,
                          const at::Tensor& input_zero_point, const at::Tensor& weight,
                          const at::Tensor& weight_scale, const at::Tensor& factor,
                          const at::Tensor& offset, const std::optional<at::Tensor>& skip,
                          const std::optional<at::Tensor>& skip_scale,
                          const std::optional<at::Tensor>& skip_zero_point,
                          const std::optional<at::Tensor>& output_scale,
                          const std::optional<at::Tensor>& output_zero_point, int64_t base,
                          at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                          at::IntArrayRef output_padding, int64_t groups, int64_t activation);

/// The same on the result of `pack_weight` with this base, stride, dilation and groups;
/// `weight_size` is the shape of the weight.
at::Tensor quantized_conv_packed(
    const at::Tensor& input, const at::Tensor& input_scale, const at::Tensor& input_zero_point,
    const at::Tensor& packed, at::IntArrayRef weight_size, const at::Tensor& weight_scale,
    const at::Tensor& factor, const at::Tensor& offset, const std::optional<at::Tensor>& skip,
    const std::optional<at::Tensor>& skip_scale, const std::optional<at::Tensor>& skip_zero_point,
    const std::optional<at::Tensor>& output_scale,
    const std::optional<at::Tensor>& output_zero_point, int64_t base, at::IntArrayRef stride,
    at::IntArrayRef padding, at::IntArrayRef dilation, at::IntArrayRef output_padding,
    int64_t groups, int64_t activation);

}  // namespace horizon::ops
