#include "ops/annotation.h"

#include <ATen/ops/alias.h>
#include <torch/library.h>

#include "ops/checks.h"

namespace horizon::ops {
namespace {

// Aliases, not `self` itself: a result that is its own argument confuses views, functionalization
// and in-place checks.
TORCH_LIBRARY(annotation, m) {
  m.def("cast_hint(Tensor(a) self, str dtype) -> Tensor(a)");
  m.def("stop_fusion(Tensor(a) self) -> Tensor(a)");
}

at::Tensor cast_hint_kernel(const at::Tensor& self, c10::string_view dtype) {
  HORIZON_CHECK_VALUE(is_hint_dtype(dtype), "cast_hint", "dtype", kHintDtypes,
                      c10::str("'", dtype, "'"));
  return at::alias(self);
}

at::Tensor stop_fusion_kernel(const at::Tensor& self) { return at::alias(self); }

TORCH_LIBRARY_IMPL(annotation, CompositeImplicitAutograd, m) {
  m.impl("cast_hint", &cast_hint_kernel);
  m.impl("stop_fusion", &stop_fusion_kernel);
}

}  // namespace

bool is_hint_dtype(std::string_view dtype) {
  return dtype == "int8" || dtype == "uint8" || dtype == "int16";
}

at::Tensor cast_hint(const at::Tensor& self, std::string_view dtype) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("annotation::cast_hint", "")
                             .typed<at::Tensor(const at::Tensor&, c10::string_view)>();
  return op.call(self, dtype);
}

at::Tensor stop_fusion(const at::Tensor& self) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("annotation::stop_fusion", "")
                             .typed<decltype(stop_fusion)>();
  return op.call(self);
}

}  // namespace horizon::ops
