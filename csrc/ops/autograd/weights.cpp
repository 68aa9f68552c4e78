#include "ops/weights.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "ops/checks.h"

namespace horizon::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Abs-max scales never clip, so that the straight-through gradient is the identity.
class FakeQuantizeWeight : public torch::autograd::Function<FakeQuantizeWeight> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& weight, int64_t base,
                            int64_t groups) {
    at::AutoDispatchBelowADInplaceOrView guard;
    ctx->set_materialize_grads(false);
    return fake_quantize_weight(weight, base, groups);
  }

  static variable_list backward(AutogradContext*, const variable_list& grads) {
    return {grads[0], at::Tensor(), at::Tensor()};
  }
};

at::Tensor fake_quantize_weight_autograd(const at::Tensor& weight, int64_t base, int64_t groups) {
  check_no_tangent("fake_quantize_weight", "weight", weight);
  return FakeQuantizeWeight::apply(weight, base, groups);
}

at::Tensor weight_scale_autograd(const at::Tensor& weight, int64_t base, int64_t groups) {
  at::AutoDispatchBelowADInplaceOrView guard;
  return weight_scale(weight, base, groups);
}

at::Tensor quantize_weight_autograd(const at::Tensor& weight, const at::Tensor& scale, int64_t base,
                                    int64_t groups) {
  at::AutoDispatchBelowADInplaceOrView guard;
  return quantize_weight(weight, scale, base, groups);
}

TORCH_LIBRARY_IMPL(horizon, Autograd, m) {
  m.impl("weight_scale", &weight_scale_autograd);
  m.impl("quantize_weight", &quantize_weight_autograd);
  m.impl("fake_quantize_weight", &fake_quantize_weight_autograd);
}

}  // namespace
}  // namespace horizon::ops
