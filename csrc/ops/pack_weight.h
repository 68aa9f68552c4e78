#pragma once

#include <ATen/core/Tensor.h>

namespace horizon::ops {

/// Lays int8 weight codes out as `quantized_conv_packed` reads them, the same on every machine.
///
/// `weight` is int8 in the float weight's shape. `base`: 0 conv2d, 1 conv_transpose2d, 2 linear.
/// `stride` and `dilation` (two entries) count for conv_transpose2d alone. Returns an int8 vector,
/// about as large as the weight. Raises ValueError or TypeError for arguments that break these
/// rules, and for sums that could overflow int32.
at::Tensor pack_weight(const at::Tensor& weight, int64_t base, at::IntArrayRef stride,
                       at::IntArrayRef dilation, int64_t groups);

/// The codes that `pack_weight` was given with the same arguments, contiguous; `weight_size` is
/// their shape. Raises ValueError where `packed` is not as long as such a packed weight.
at::Tensor unpack_weight(const at::Tensor& packed, at::IntArrayRef weight_size, int64_t base,
                         at::IntArrayRef stride, at::IntArrayRef dilation, int64_t groups);

}  // namespace horizon::ops
