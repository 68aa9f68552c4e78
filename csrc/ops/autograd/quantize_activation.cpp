#include "ops/quantize_activation.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "ops/checks.h"
#include "ops/fake_quantize.h"

namespace horizon::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// x is the only differentiable argument: the quantizer's tensors are statistics.
class QuantizeActivation : public torch::autograd::Function<QuantizeActivation> {
 public:
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, const QuantizerArgs& q) {
    at::AutoDispatchBelowADInplaceOrView guard;
    auto [y, scale, zero_point, mask] = quantize_activation_mask(x, q);
    ctx->mark_non_differentiable({scale, zero_point, mask});
    ctx->set_materialize_grads(false);
    ctx->saved_data["quantizes"] = q.quantizes();
    if (q.quantizes()) {
      ctx->save_for_backward({mask});
      ctx->saved_data["order"] = memory_order(y);
    }
    return {y, scale, zero_point, mask};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    if (!grads[0].defined() || !ctx->saved_data["quantizes"].toBool()) return {grads[0], {}};
    const auto saved = ctx->get_saved_variables();
    return {mask_gradient(grads[0], saved[0], ctx->saved_data["order"].toIntVector()), {}};
  }
};

bool records(const at::Tensor& x) {
  check_no_tangent("quantize_activation", "x", x);
  return c10::GradMode::is_enabled() && x.requires_grad();
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> quantize_activation_autograd(
    const at::Tensor& x, const std::optional<at::Tensor>& min_val,
    const std::optional<at::Tensor>& max_val, const std::optional<at::Tensor>& observed,
    const std::optional<at::Tensor>& scale, const std::optional<at::Tensor>& zero_point,
    int64_t preset, int64_t observer, double averaging_constant, bool observe, bool fake_quantize,
    bool skip_nonfinite) {
  const QuantizerArgs q{min_val,    max_val,       observed,      scale,
                        zero_point, preset,        observer,      averaging_constant,
                        observe,    fake_quantize, skip_nonfinite};
  if (records(x)) {
    const variable_list out = QuantizeActivation::apply(x, q);
    return {out[0], out[1], out[2]};
  }
  at::AutoDispatchBelowADInplaceOrView guard;
  return quantize_activation(x, q);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> quantize_activation_mask_autograd(
    const at::Tensor& x, const std::optional<at::Tensor>& min_val,
    const std::optional<at::Tensor>& max_val, const std::optional<at::Tensor>& observed,
    const std::optional<at::Tensor>& scale, const std::optional<at::Tensor>& zero_point,
    int64_t preset, int64_t observer, double averaging_constant, bool observe, bool fake_quantize,
    bool skip_nonfinite) {
  const QuantizerArgs q{min_val,    max_val,       observed,      scale,
                        zero_point, preset,        observer,      averaging_constant,
                        observe,    fake_quantize, skip_nonfinite};
  if (records(x)) {
    const variable_list out = QuantizeActivation::apply(x, q);
    return {out[0], out[1], out[2], out[3]};
  }
  at::AutoDispatchBelowADInplaceOrView guard;
  return quantize_activation_mask(x, q);
}

TORCH_LIBRARY_IMPL(horizon, Autograd, m) {
  m.impl("quantize_activation", &quantize_activation_autograd);
  m.impl("_quantize_activation_mask", &quantize_activation_mask_autograd);
}

}  // namespace
}  // namespace horizon::ops
