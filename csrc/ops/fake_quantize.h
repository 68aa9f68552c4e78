#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>
#include <vector>

namespace horizon::ops {

/// (clamp(rint(x / scale) + zero_point, quant_min, quant_max) - zero_point) * scale.
///
/// x: float32, float64, float16 or bfloat16, any shape, strides and memory format; the result has
/// its dtype and layout. scale: float, one element, finite and positive. zero_point: int32 or
/// int64, one element, in [quant_min, quant_max]. Infinities saturate, NaN stays NaN. The gradient
/// passes inside the range, ends included, and is 0 outside and for NaN; none flows to scale.
/// Source: torch.fake_quantize_per_tensor_affine, to which it is bit-equal for |x / scale| < 2^31;
/// for float64 up to torch's rounding of the result to fp32.
at::Tensor fake_quantize_per_tensor(const at::Tensor& x, const at::Tensor& scale,
                                    const at::Tensor& zero_point, int64_t quant_min,
                                    int64_t quant_max);

/// The same with one scale and zero point, 1-d of length x.size(axis), for each index of `axis`
/// (negative counts from the end).
at::Tensor fake_quantize_per_channel(const at::Tensor& x, const at::Tensor& scale,
                                     const at::Tensor& zero_point, int64_t axis, int64_t quant_min,
                                     int64_t quant_max);

/// The value of `fake_quantize_per_tensor` with the mask of its gradient.
///
/// The mask is uint8 of ceil(numel / 8) bytes: element i, in the order of memory of the result, is
/// bit i % 8 of byte i / 8; 1 where the gradient passes.
std::tuple<at::Tensor, at::Tensor> fake_quantize_per_tensor_mask(const at::Tensor& x,
                                                                 const at::Tensor& scale,
                                                                 const at::Tensor& zero_point,
                                                                 int64_t quant_min,
                                                                 int64_t quant_max);

std::tuple<at::Tensor, at::Tensor> fake_quantize_per_channel_mask(const at::Tensor& x,
                                                                  const at::Tensor& scale,
                                                                  const at::Tensor& zero_point,
                                                                  int64_t axis, int64_t quant_min,
                                                                  int64_t quant_max);

/// The gradient where the mask has a 1, else 0; strides of `grad` are arbitrary.
///
/// `order` lists the dimensions from the outermost in memory to the innermost, as the mask counts
/// elements (`memory_order` of the masked tensor); the result is dense in that order.
at::Tensor mask_gradient(const at::Tensor& grad, const at::Tensor& mask, at::IntArrayRef order);

/// Argument checks of the ops above, without tensor values; `check_per_channel` returns the axis
/// counted from the front.
void check_per_tensor(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& zero_point,
                      int64_t quant_min, int64_t quant_max);
int64_t check_per_channel(const at::Tensor& x, const at::Tensor& scale,
                          const at::Tensor& zero_point, int64_t axis, int64_t quant_min,
                          int64_t quant_max);
void check_mask_gradient(const at::Tensor& grad, const at::Tensor& mask, at::IntArrayRef order);

/// Number of bytes of the mask of x.
c10::SymInt mask_size(const at::Tensor& x);

/// The dimensions of a dense tensor from the outermost in memory to the innermost.
std::vector<int64_t> memory_order(const at::Tensor& dense);

/// The permutation that undoes `order`.
std::vector<int64_t> inverse_order(at::IntArrayRef order);

}  // namespace horizon::ops
