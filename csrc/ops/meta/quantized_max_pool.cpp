#include "ops/quantized_max_pool.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

namespace horizon::ops {
namespace {

at::Tensor quantized_max_pool2d_meta(const at::Tensor& q, at::IntArrayRef kernel_size,
                                     at::IntArrayRef stride, at::IntArrayRef padding,
                                     at::IntArrayRef dilation, bool ceil_mode) {
  const auto shape =
      check_quantized_max_pool2d(q, kernel_size, stride, padding, dilation, ceil_mode);
  return at::empty_symint(shape.sizes, q.options(), shape.format);
}

}  // namespace
}  // namespace horizon::ops

TORCH_LIBRARY_IMPL(horizon, Meta, m) {
  m.impl("quantized_max_pool2d", TORCH_FN(horizon::ops::quantized_max_pool2d_meta));
}
