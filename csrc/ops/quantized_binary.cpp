#include "ops/quantized_binary.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "ops/checks.h"
#include "ops/integer_checks.h"

namespace horizon::ops {

at::Tensor quantized_add(const at::Tensor& a, const at::Tensor& a_scale,
                         const at::Tensor& a_zero_point, const at::Tensor& b,
                         const at::Tensor& b_scale, const at::Tensor& b_zero_point,
                         const at::Tensor& scale, const at::Tensor& zero_point, int64_t activation,
                         double alpha) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("horizon::quantized_add", "")
                             .typed<decltype(quantized_add)>();
  return op.call(a, a_scale, a_zero_point, b, b_scale, b_zero_point, scale, zero_point, activation,
                 alpha);
}

at::Tensor quantized_mul(const at::Tensor& a, const at::Tensor& a_scale,
                         const at::Tensor& a_zero_point, const at::Tensor& b,
                         const at::Tensor& b_scale, const at::Tensor& b_zero_point,
                         const at::Tensor& scale, const at::Tensor& zero_point,
                         int64_t activation) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("horizon::quantized_mul", "")
                             .typed<decltype(quantized_mul)>();
  return op.call(a, a_scale, a_zero_point, b, b_scale, b_zero_point, scale, zero_point, activation);
}

QuantizedBinaryShape check_quantized_binary(
    const char* op, const at::Tensor& a, const at::Tensor& a_scale, const at::Tensor& a_zero_point,
    const at::Tensor& b, const at::Tensor& b_scale, const at::Tensor& b_zero_point,
    const at::Tensor& scale, const at::Tensor& zero_point, int64_t activation, double alpha) {
  check_codes(op, a, "a", "a", a, "a_scale", a_scale, "a_zero_point", a_zero_point);
  check_codes(op, a, "a", "b", b, "b_scale", b_scale, "b_zero_point", b_zero_point);
  check_grid(op, a, "a", "scale", scale, "zero_point", zero_point);
  check_activation(op, activation);
  HORIZON_CHECK_VALUE(alpha == 1.0 || alpha == -1.0, op, "alpha", "1 or -1", alpha);
  QuantizedBinaryShape out;
  out.sizes = broadcast_sizes(op, "'a'", a.sym_sizes(), "b", b.sym_sizes());
  const c10::SymIntArrayRef sizes(out.sizes);
  if (a.sym_sizes() == sizes) {
    out.format = result_format(a);
  } else if (b.sym_sizes() == sizes) {
    out.format = result_format(b);
  } else {
    out.format = at::MemoryFormat::Contiguous;
  }
  return out;
}

}  // namespace horizon::ops

TORCH_LIBRARY_FRAGMENT(horizon, m) {
  m.def(
      "quantized_add(Tensor a, Tensor a_scale, Tensor a_zero_point, Tensor b, Tensor b_scale, "
      "Tensor b_zero_point, Tensor scale, Tensor zero_point, int activation, float alpha) "
      "-> Tensor");
  m.def(
      "quantized_mul(Tensor a, Tensor a_scale, Tensor a_zero_point, Tensor b, Tensor b_scale, "
      "Tensor b_zero_point, Tensor scale, Tensor zero_point, int activation) -> Tensor");
}
