#include "ops/codes_io.h"

#include <torch/library.h>

#include "ops/checks.h"

namespace horizon::ops {
namespace {

TORCH_LIBRARY_FRAGMENT(horizon, m) {
  m.def("quantize(Tensor x, Tensor scale, Tensor zero_point) -> Tensor");
  m.def("dequantize(Tensor q, Tensor scale, Tensor zero_point, ScalarType? dtype=None) -> Tensor");
}

void check_qparams(const char* op, const at::Tensor& scale, const at::Tensor& zero_point,
                   const at::Tensor& reference, const char* name) {
  check_scale(op, "scale", scale);
  check_device(op, "scale", scale, reference, name);
  check_zero_point(op, "zero_point", zero_point);
  check_device(op, "zero_point", zero_point, reference, name);
}

}  // namespace

void check_quantize(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& zero_point) {
  check_float("quantize", "x", x);
  check_qparams("quantize", scale, zero_point, x, "x");
}

at::ScalarType check_dequantize(const at::Tensor& q, const at::Tensor& scale,
                                const at::Tensor& zero_point, std::optional<at::ScalarType> dtype) {
  check_dtype("dequantize", "q", q, at::kByte);
  check_qparams("dequantize", scale, zero_point, q, "q");
  const at::ScalarType type = dtype.value_or(at::kFloat);
  HORIZON_CHECK_TYPE(is_float(type), "dequantize", "dtype", "float32, float64, float16 or bfloat16",
                     dtype_text(type));
  return type;
}

at::Tensor quantize(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& zero_point) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("horizon::quantize", "")
                             .typed<decltype(quantize)>();
  return op.call(x, scale, zero_point);
}

at::Tensor dequantize(const at::Tensor& q, const at::Tensor& scale, const at::Tensor& zero_point,
                      std::optional<at::ScalarType> dtype) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("horizon::dequantize", "")
                             .typed<decltype(dequantize)>();
  return op.call(q, scale, zero_point, dtype);
}

}  // namespace horizon::ops
