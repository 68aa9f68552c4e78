#include "ops/quantized_binary.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

namespace horizon::ops {
namespace {

at::Tensor quantized_add_meta(const at::Tensor& a, const at::Tensor& a_scale,
                              const at::Tensor& a_zero_point, const at::Tensor& b,
                              const at::Tensor& b_scale, const at::Tensor& b_zero_point,
                              const at::Tensor& scale, const at::Tensor& zero_point,
                              int64_t activation, double alpha) {
  const auto shape = check_quantized_binary("quantized_add", a, a_scale, a_zero_point, b, b_scale,
                                            b_zero_point, scale, zero_point, activation, alpha);
  return at::empty_symint(shape.sizes, a.options(), shape.format);
}

at::Tensor quantized_mul_meta(const at::Tensor& a, const at::Tensor& a_scale,
                              const at::Tensor& a_zero_point, const at::Tensor& b,
                              const at::Tensor& b_scale, const at::Tensor& b_zero_point,
                              const at::Tensor& scale, const at::Tensor& zero_point,
                              int64_t activation) {
  const auto shape =
      check_quantized_binary("quantized_mul", a, a_scale, a_zero_point, b, b_scale, b_zero_point,
                             scale, zero_point, activation, /*alpha=*/1.0);
  return at::empty_symint(shape.sizes, a.options(), shape.format);
}

}  // namespace
}  // namespace horizon::ops

TORCH_LIBRARY_IMPL(horizon, Meta, m) {
  m.impl("quantized_add", TORCH_FN(horizon::ops::quantized_add_meta));
  m.impl("quantized_mul", TORCH_FN(horizon::ops::quantized_mul_meta));
}
