#include "ops/quantized_pool.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

namespace horizon::ops {
namespace {

at::Tensor quantized_avg_pool2d_meta(const at::Tensor& q, const at::Tensor& q_scale,
                                     const at::Tensor& q_zero_point, at::IntArrayRef kernel_size,
                                     at::IntArrayRef stride, at::IntArrayRef padding,
                                     bool ceil_mode, bool /*count_include_pad*/,
                                     std::optional<int64_t> divisor_override,
                                     const at::Tensor& scale, const at::Tensor& zero_point) {
  const auto shape =
      check_quantized_avg_pool2d(q, q_scale, q_zero_point, kernel_size, stride, padding, ceil_mode,
                                 divisor_override, scale, zero_point);
  return at::empty_symint(shape.sizes, q.options(), shape.format);
}

at::Tensor quantized_adaptive_avg_pool2d_meta(const at::Tensor& q, const at::Tensor& q_scale,
                                              const at::Tensor& q_zero_point,
                                              at::IntArrayRef output_size, const at::Tensor& scale,
                                              const at::Tensor& zero_point) {
  const auto shape =
      check_quantized_adaptive_avg_pool2d(q, q_scale, q_zero_point, output_size, scale, zero_point);
  return at::empty_symint(shape.sizes, q.options(), shape.format);
}

at::Tensor quantized_mean_meta(const at::Tensor& q, const at::Tensor& q_scale,
                               const at::Tensor& q_zero_point, at::IntArrayRef dim, bool keepdim,
                               const at::Tensor& scale, const at::Tensor& zero_point) {
  const auto shape =
      check_quantized_mean(q, q_scale, q_zero_point, dim, keepdim, scale, zero_point);
  return at::empty_symint(shape.sizes, q.options(), shape.format);
}

}  // namespace
}  // namespace horizon::ops

TORCH_LIBRARY_IMPL(horizon, Meta, m) {
  m.impl("quantized_avg_pool2d", TORCH_FN(horizon::ops::quantized_avg_pool2d_meta));
  m.impl("quantized_adaptive_avg_pool2d",
         TORCH_FN(horizon::ops::quantized_adaptive_avg_pool2d_meta));
  m.impl("quantized_mean", TORCH_FN(horizon::ops::quantized_mean_meta));
}
