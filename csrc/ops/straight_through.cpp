#include "ops/straight_through.h"

#include <ATen/ops/clone.h>
#include <torch/library.h>

#include "ops/checks.h"

namespace horizon::ops {
namespace {

TORCH_LIBRARY_FRAGMENT(horizon, m) {
  m.def("straight_through(Tensor value, Tensor surrogate) -> Tensor");
}

at::Tensor straight_through_kernel(const at::Tensor& value, const at::Tensor& surrogate) {
  constexpr const char* kOp = "straight_through";
  check_float(kOp, "value", value);
  check_dtype(kOp, "surrogate", surrogate, value.scalar_type());
  check_shape(kOp, "surrogate", surrogate, value.sym_sizes());
  check_device(kOp, "surrogate", surrogate, value, "value");
  return value.clone(at::MemoryFormat::Preserve);
}

TORCH_LIBRARY_IMPL(horizon, CompositeExplicitAutograd, m) {
  m.impl("straight_through", &straight_through_kernel);
}

}  // namespace

at::Tensor straight_through(const at::Tensor& value, const at::Tensor& surrogate) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("horizon::straight_through", "")
                             .typed<decltype(straight_through)>();
  return op.call(value, surrogate);
}

}  // namespace horizon::ops
