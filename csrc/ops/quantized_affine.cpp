#include "ops/quantized_affine.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "ops/checks.h"
#include "ops/integer_checks.h"

namespace horizon::ops {
namespace {

constexpr const char* kOp = "quantized_affine";

void check_grids(const char* op, const at::Tensor& q, const at::Tensor& q_scale,
                 const at::Tensor& q_zero_point, const at::Tensor& scale,
                 const at::Tensor& zero_point, int64_t activation) {
  check_codes(op, q, "q", "q", q, "q_scale", q_scale, "q_zero_point", q_zero_point);
  check_grid(op, q, "q", "scale", scale, "zero_point", zero_point);
  check_activation(op, activation);
}

void check_vector(const at::Tensor& q, const char* name, const at::Tensor& vector) {
  check_dtype(kOp, name, vector, at::kDouble);
  check_device(kOp, name, vector, q, "q");
  if (vector.dim() == 0 || vector.sym_numel() == 1) return;
  HORIZON_CHECK_VALUE(q.dim() >= 2, kOp, name, "of one entry where 'q' has no channels",
                      shape_text(vector));
  check_shape(kOp, name, vector, {q.sym_size(1)});
}

}  // namespace

at::Tensor quantized_affine(const at::Tensor& q, const at::Tensor& q_scale,
                            const at::Tensor& q_zero_point, const at::Tensor& factor,
                            const at::Tensor& offset, const at::Tensor& scale,
                            const at::Tensor& zero_point, int64_t activation) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("horizon::quantized_affine", "")
                             .typed<decltype(quantized_affine)>();
  return op.call(q, q_scale, q_zero_point, factor, offset, scale, zero_point, activation);
}

at::Tensor quantized_affine_scalar(const at::Tensor& q, const at::Tensor& q_scale,
                                   const at::Tensor& q_zero_point, double factor, double offset,
                                   const at::Tensor& scale, const at::Tensor& zero_point,
                                   int64_t activation) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("horizon::quantized_affine_scalar", "")
                             .typed<decltype(quantized_affine_scalar)>();
  return op.call(q, q_scale, q_zero_point, factor, offset, scale, zero_point, activation);
}

void check_quantized_affine_scalar(const at::Tensor& q, const at::Tensor& q_scale,
                                   const at::Tensor& q_zero_point, const at::Tensor& scale,
                                   const at::Tensor& zero_point, int64_t activation) {
  check_grids("quantized_affine_scalar", q, q_scale, q_zero_point, scale, zero_point, activation);
}

void check_quantized_affine(const at::Tensor& q, const at::Tensor& q_scale,
                            const at::Tensor& q_zero_point, const at::Tensor& factor,
                            const at::Tensor& offset, const at::Tensor& scale,
                            const at::Tensor& zero_point, int64_t activation) {
  check_grids(kOp, q, q_scale, q_zero_point, scale, zero_point, activation);
  check_vector(q, "factor", factor);
  check_vector(q, "offset", offset);
}

}  // namespace horizon::ops

TORCH_LIBRARY_FRAGMENT(horizon, m) {
  m.def(
      "quantized_affine(Tensor q, Tensor q_scale, Tensor q_zero_point, Tensor factor, "
      "Tensor offset, Tensor scale, Tensor zero_point, int activation) -> Tensor");
  m.def(
      "quantized_affine_scalar(Tensor q, Tensor q_scale, Tensor q_zero_point, float factor, "
      "float offset, Tensor scale, Tensor zero_point, int activation) -> Tensor");
}
