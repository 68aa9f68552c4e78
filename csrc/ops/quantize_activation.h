#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

#include "ops/quantizer.h"

namespace horizon::ops {

/// Observes x if asked to, then fake-quantizes it with the updated grid.
///
/// x: any float dtype, shape and layout. Returns (y, scale, zero_point): y in x's dtype and layout;
/// fresh 0-d tensors of the grid used, the zero point as codes are stored; two empty tensors if
/// nothing was quantized. y is then a copy of x, since an operator must not return its input:
/// callers that only observe use `observe_`. The gradient passes inside the range, ends included.
std::tuple<at::Tensor, at::Tensor, at::Tensor> quantize_activation(const at::Tensor& x,
                                                                   const QuantizerArgs& q);

/// The same with the gradient's mask (ops/fake_quantize.h), empty if nothing was quantized.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> quantize_activation_mask(
    const at::Tensor& x, const QuantizerArgs& q);

}  // namespace horizon::ops
