#include "ops/quantized_lookup.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "ops/checks.h"

namespace horizon::ops {

at::Tensor quantized_lookup(const at::Tensor& q, const at::Tensor& table) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("horizon::quantized_lookup", "")
                             .typed<decltype(quantized_lookup)>();
  return op.call(q, table);
}

void check_quantized_lookup(const at::Tensor& q, const at::Tensor& table) {
  constexpr const char* kOp = "quantized_lookup";
  check_dtype(kOp, "q", q, at::kByte);
  check_dtype(kOp, "table", table, at::kByte);
  check_shape(kOp, "table", table, {256});
  check_device(kOp, "table", table, q, "q");
}

}  // namespace horizon::ops

TORCH_LIBRARY_FRAGMENT(horizon, m) { m.def("quantized_lookup(Tensor q, Tensor table) -> Tensor"); }
