#include "ops/quantized_affine.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "ops/integer_checks.h"

namespace horizon::ops {
namespace {

at::Tensor quantized_affine_meta(const at::Tensor& q, const at::Tensor& q_scale,
                                 const at::Tensor& q_zero_point, const at::Tensor& factor,
                                 const at::Tensor& offset, const at::Tensor& scale,
                                 const at::Tensor& zero_point, int64_t activation) {
  check_quantized_affine(q, q_scale, q_zero_point, factor, offset, scale, zero_point, activation);
  return at::empty_symint(q.sym_sizes(), q.options(), result_format(q));
}

at::Tensor quantized_affine_scalar_meta(const at::Tensor& q, const at::Tensor& q_scale,
                                        const at::Tensor& q_zero_point, double factor,
                                        double offset, const at::Tensor& scale,
                                        const at::Tensor& zero_point, int64_t activation) {
  check_quantized_affine_scalar(q, q_scale, q_zero_point, scale, zero_point, activation);
  return at::empty_symint(q.sym_sizes(), q.options(), result_format(q));
}

}  // namespace
}  // namespace horizon::ops

TORCH_LIBRARY_IMPL(horizon, Meta, m) {
  m.impl("quantized_affine", TORCH_FN(horizon::ops::quantized_affine_meta));
  m.impl("quantized_affine_scalar", TORCH_FN(horizon::ops::quantized_affine_scalar_meta));
}
