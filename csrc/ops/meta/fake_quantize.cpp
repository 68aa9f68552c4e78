#include "ops/fake_quantize.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

namespace horizon::ops {
namespace {

at::Tensor empty_mask(const at::Tensor& x) {
  return at::empty_symint({mask_size(x)}, x.options().dtype(at::kByte));
}

at::Tensor fake_quantize_per_tensor_meta(const at::Tensor& x, const at::Tensor& scale,
                                         const at::Tensor& zero_point, int64_t quant_min,
                                         int64_t quant_max) {
  check_per_tensor(x, scale, zero_point, quant_min, quant_max);
  return at::empty_like(x);
}

std::tuple<at::Tensor, at::Tensor> fake_quantize_per_tensor_mask_meta(const at::Tensor& x,
                                                                      const at::Tensor& scale,
                                                                      const at::Tensor& zero_point,
                                                                      int64_t quant_min,
                                                                      int64_t quant_max) {
  check_per_tensor(x, scale, zero_point, quant_min, quant_max);
  return {at::empty_like(x), empty_mask(x)};
}

at::Tensor fake_quantize_per_channel_meta(const at::Tensor& x, const at::Tensor& scale,
                                          const at::Tensor& zero_point, int64_t axis,
                                          int64_t quant_min, int64_t quant_max) {
  check_per_channel(x, scale, zero_point, axis, quant_min, quant_max);
  return at::empty_like(x);
}

std::tuple<at::Tensor, at::Tensor> fake_quantize_per_channel_mask_meta(
    const at::Tensor& x, const at::Tensor& scale, const at::Tensor& zero_point, int64_t axis,
    int64_t quant_min, int64_t quant_max) {
  check_per_channel(x, scale, zero_point, axis, quant_min, quant_max);
  return {at::empty_like(x), empty_mask(x)};
}

at::Tensor mask_gradient_meta(const at::Tensor& grad, const at::Tensor& mask,
                              at::IntArrayRef order) {
  check_mask_gradient(grad, mask, order);
  const at::Tensor permuted = grad.permute(order);
  return at::empty_symint(permuted.sym_sizes(), grad.options()).permute(inverse_order(order));
}

TORCH_LIBRARY_IMPL(horizon, Meta, m) {
  m.impl("fake_quantize_per_tensor", &fake_quantize_per_tensor_meta);
  m.impl("fake_quantize_per_channel", &fake_quantize_per_channel_meta);
  m.impl("_fake_quantize_per_tensor_mask", &fake_quantize_per_tensor_mask_meta);
  m.impl("_fake_quantize_per_channel_mask", &fake_quantize_per_channel_mask_meta);
  m.impl("_mask_gradient", &mask_gradient_meta);
}

}  // namespace
}  // namespace horizon::ops
