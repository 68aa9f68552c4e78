#include "ops/straight_through.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "ops/checks.h"

namespace horizon::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class StraightThrough : public torch::autograd::Function<StraightThrough> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& value,
                            const at::Tensor& surrogate) {
    at::AutoDispatchBelowADInplaceOrView guard;
    ctx->set_materialize_grads(false);
    return straight_through(value, surrogate);
  }

  static variable_list backward(AutogradContext*, const variable_list& grads) {
    return {at::Tensor(), grads[0]};
  }
};

at::Tensor straight_through_autograd(const at::Tensor& value, const at::Tensor& surrogate) {
  check_no_tangent("straight_through", "value", value);
  check_no_tangent("straight_through", "surrogate", surrogate);
  return StraightThrough::apply(value.detach(), surrogate);
}

TORCH_LIBRARY_IMPL(horizon, Autograd, m) { m.impl("straight_through", &straight_through_autograd); }

}  // namespace
}  // namespace horizon::ops
