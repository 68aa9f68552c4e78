#include "ops/quantized_max_pool.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "ops/checks.h"
#include "ops/pool_shapes.h"

namespace horizon::ops {

at::Tensor quantized_max_pool2d(const at::Tensor& q, at::IntArrayRef kernel_size,
                                at::IntArrayRef stride, at::IntArrayRef padding,
                                at::IntArrayRef dilation, bool ceil_mode) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("horizon::quantized_max_pool2d", "")
                             .typed<decltype(quantized_max_pool2d)>();
  return op.call(q, kernel_size, stride, padding, dilation, ceil_mode);
}

QuantizedPoolShape check_quantized_max_pool2d(const at::Tensor& q, at::IntArrayRef kernel_size,
                                              at::IntArrayRef stride, at::IntArrayRef padding,
                                              at::IntArrayRef dilation, bool ceil_mode) {
  constexpr const char* kOp = "quantized_max_pool2d";
  check_dtype(kOp, "q", q, at::kByte);
  QuantizedPoolShape out = check_pooled_image(kOp, q);
  out.dilation = read_pair(kOp, "dilation", dilation, 1);
  check_pool_windows(kOp, q, kernel_size, stride, padding, ceil_mode, out);
  return out;
}

}  // namespace horizon::ops

TORCH_LIBRARY_FRAGMENT(horizon, m) {
  m.def(
      "quantized_max_pool2d(Tensor q, int[] kernel_size, int[] stride, int[] padding, "
      "int[] dilation, bool ceil_mode) -> Tensor");
}
