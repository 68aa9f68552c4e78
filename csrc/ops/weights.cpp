#include "ops/weights.h"

#include <torch/library.h>

#include "ops/checks.h"

namespace horizon::ops {
namespace {

TORCH_LIBRARY_FRAGMENT(horizon, m) {
  m.def("weight_scale(Tensor weight, int base, int groups) -> Tensor");
  m.def("quantize_weight(Tensor weight, Tensor scale, int base, int groups) -> Tensor");
  m.def("fake_quantize_weight(Tensor weight, int base, int groups) -> Tensor");
}

}  // namespace

c10::SymInt check_weight(const char* op, const at::Tensor& weight, int64_t base, int64_t groups) {
  HORIZON_CHECK_VALUE(base >= 0 && base <= 2, op, "base",
                      "0 (conv2d), 1 (conv_transpose2d) or 2 (linear)", base);
  check_float(op, "weight", weight);
  check_dim(op, "weight", weight, static_cast<Base>(base) == Base::kLinear ? 2 : 4);
  if (static_cast<Base>(base) == Base::kLinear) {
    HORIZON_CHECK_VALUE(groups == 1, op, "groups", "1 for linear", groups);
    return weight.sym_size(0);
  }
  HORIZON_CHECK_VALUE(groups >= 1, op, "groups", "at least 1", groups);
  HORIZON_CHECK_VALUE(weight.sym_size(0) % groups == 0, op, "groups",
                      c10::str("a divisor of the weight's first size (", weight.sym_size(0), ")"),
                      groups);
  if (static_cast<Base>(base) == Base::kConv2d) return weight.sym_size(0);
  return weight.sym_size(1) * groups;
}

void check_quantize_weight(const at::Tensor& weight, const at::Tensor& scale, int64_t base,
                           int64_t groups) {
  constexpr const char* kOp = "quantize_weight";
  const c10::SymInt channels = check_weight(kOp, weight, base, groups);
  check_float(kOp, "scale", scale);
  check_shape(kOp, "scale", scale, {channels});
  check_device(kOp, "scale", scale, weight, "weight");
}

at::Tensor weight_scale(const at::Tensor& weight, int64_t base, int64_t groups) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("horizon::weight_scale", "")
                             .typed<decltype(weight_scale)>();
  return op.call(weight, base, groups);
}

at::Tensor quantize_weight(const at::Tensor& weight, const at::Tensor& scale, int64_t base,
                           int64_t groups) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("horizon::quantize_weight", "")
                             .typed<decltype(quantize_weight)>();
  return op.call(weight, scale, base, groups);
}

at::Tensor fake_quantize_weight(const at::Tensor& weight, int64_t base, int64_t groups) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("horizon::fake_quantize_weight", "")
                             .typed<decltype(fake_quantize_weight)>();
  return op.call(weight, base, groups);
}

}  // namespace horizon::ops
