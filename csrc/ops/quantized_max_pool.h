#pragma once

#include <ATen/core/Tensor.h>

#include "ops/quantized_pool.h"

namespace horizon::ops {

/// Max pooling on codes, with nn.MaxPool2d's windows. Padding never wins; a window of padding alone
/// (a dilated one can be) gives code 0, the grid's least.
///
/// `q`: uint8 codes [channels, height, width] or [batch, channels, height, width]; `kernel_size`,
/// `stride` (empty: the kernel's), `padding` (at most half the kernel), `dilation`: one or two
/// entries. Returns uint8 codes on q's grid in q's memory format. Raises ValueError or TypeError
/// for arguments that break these rules.
at::Tensor quantized_max_pool2d(const at::Tensor& q, at::IntArrayRef kernel_size,
                                at::IntArrayRef stride, at::IntArrayRef padding,
                                at::IntArrayRef dilation, bool ceil_mode);

/// Checks the arguments; for the backends.
QuantizedPoolShape check_quantized_max_pool2d(const at::Tensor& q, at::IntArrayRef kernel_size,
                                              at::IntArrayRef stride, at::IntArrayRef padding,
                                              at::IntArrayRef dilation, bool ceil_mode);

}  // namespace horizon::ops
