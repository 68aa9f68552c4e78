#include "ops/quantized_cat.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

namespace horizon::ops {
namespace {

at::Tensor quantized_cat_meta(at::TensorList q, at::TensorList scales, at::TensorList zero_points,
                              int64_t dim, const at::Tensor& scale, const at::Tensor& zero_point) {
  const auto shape = check_quantized_cat(q, scales, zero_points, dim, scale, zero_point);
  return at::empty_symint(shape.sizes, q[0].options(), shape.format);
}

}  // namespace
}  // namespace horizon::ops

TORCH_LIBRARY_IMPL(horizon, Meta, m) {
  m.impl("quantized_cat", TORCH_FN(horizon::ops::quantized_cat_meta));
}
