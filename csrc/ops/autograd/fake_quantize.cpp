#include "ops/fake_quantize.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "ops/checks.h"

namespace horizon::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void save(AutogradContext* ctx, const at::Tensor& y, const at::Tensor& mask) {
  ctx->save_for_backward({mask});
  ctx->saved_data["order"] = memory_order(y);
  ctx->mark_non_differentiable({mask});
  ctx->set_materialize_grads(false);
}

at::Tensor masked(AutogradContext* ctx, const variable_list& grads) {
  if (!grads[0].defined()) return {};
  const auto saved = ctx->get_saved_variables();
  return mask_gradient(grads[0], saved[0], ctx->saved_data["order"].toIntVector());
}

class PerTensor : public torch::autograd::Function<PerTensor> {
 public:
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& scale,
                               const at::Tensor& zero_point, int64_t quant_min, int64_t quant_max) {
    at::AutoDispatchBelowADInplaceOrView guard;
    auto [y, mask] = fake_quantize_per_tensor_mask(x, scale, zero_point, quant_min, quant_max);
    save(ctx, y, mask);
    return {y, mask};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    return {masked(ctx, grads), {}, {}, {}, {}};
  }
};

class PerChannel : public torch::autograd::Function<PerChannel> {
 public:
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& scale,
                               const at::Tensor& zero_point, int64_t axis, int64_t quant_min,
                               int64_t quant_max) {
    at::AutoDispatchBelowADInplaceOrView guard;
    auto [y, mask] =
        fake_quantize_per_channel_mask(x, scale, zero_point, axis, quant_min, quant_max);
    save(ctx, y, mask);
    return {y, mask};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    return {masked(ctx, grads), {}, {}, {}, {}, {}};
  }
};

// Linear in the gradient, so that gradients of gradients are its own.
class MaskGradient : public torch::autograd::Function<MaskGradient> {
 public:
  static variable_list forward(AutogradContext* ctx, const at::Tensor& grad, const at::Tensor& mask,
                               at::IntArrayRef order) {
    at::AutoDispatchBelowADInplaceOrView guard;
    ctx->save_for_backward({mask});
    ctx->saved_data["order"] = order.vec();
    ctx->set_materialize_grads(false);
    return {mask_gradient(grad, mask, order)};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    return {masked(ctx, grads), {}, {}};
  }
};

// Whether a graph is to be recorded for x; refuses gradients of anything else.
bool records(const char* op, const at::Tensor& x, const at::Tensor& scale) {
  check_no_tangent(op, "x", x);
  check_no_gradient(op, "scale", scale);
  return c10::GradMode::is_enabled() && x.requires_grad();
}

std::tuple<at::Tensor, at::Tensor> pair(const variable_list& list) { return {list[0], list[1]}; }

at::Tensor fake_quantize_per_tensor_autograd(const at::Tensor& x, const at::Tensor& scale,
                                             const at::Tensor& zero_point, int64_t quant_min,
                                             int64_t quant_max) {
  if (records("fake_quantize_per_tensor", x, scale)) {
    return PerTensor::apply(x, scale, zero_point, quant_min, quant_max)[0];
  }
  at::AutoDispatchBelowADInplaceOrView guard;
  return fake_quantize_per_tensor(x, scale, zero_point, quant_min, quant_max);
}

std::tuple<at::Tensor, at::Tensor> fake_quantize_per_tensor_mask_autograd(
    const at::Tensor& x, const at::Tensor& scale, const at::Tensor& zero_point, int64_t quant_min,
    int64_t quant_max) {
  if (records("fake_quantize_per_tensor", x, scale)) {
    return pair(PerTensor::apply(x, scale, zero_point, quant_min, quant_max));
  }
  at::AutoDispatchBelowADInplaceOrView guard;
  return fake_quantize_per_tensor_mask(x, scale, zero_point, quant_min, quant_max);
}

at::Tensor fake_quantize_per_channel_autograd(const at::Tensor& x, const at::Tensor& scale,
                                              const at::Tensor& zero_point, int64_t axis,
                                              int64_t quant_min, int64_t quant_max) {
  if (records("fake_quantize_per_channel", x, scale)) {
    return PerChannel::apply(x, scale, zero_point, axis, quant_min, quant_max)[0];
  }
  at::AutoDispatchBelowADInplaceOrView guard;
  return fake_quantize_per_channel(x, scale, zero_point, axis, quant_min, quant_max);
}

std::tuple<at::Tensor, at::Tensor> fake_quantize_per_channel_mask_autograd(
    const at::Tensor& x, const at::Tensor& scale, const at::Tensor& zero_point, int64_t axis,
    int64_t quant_min, int64_t quant_max) {
  if (records("fake_quantize_per_channel", x, scale)) {
    return pair(PerChannel::apply(x, scale, zero_point, axis, quant_min, quant_max));
  }
  at::AutoDispatchBelowADInplaceOrView guard;
  return fake_quantize_per_channel_mask(x, scale, zero_point, axis, quant_min, quant_max);
}

at::Tensor mask_gradient_autograd(const at::Tensor& grad, const at::Tensor& mask,
                                  at::IntArrayRef order) {
  return MaskGradient::apply(grad, mask, order)[0];
}

TORCH_LIBRARY_IMPL(horizon, Autograd, m) {
  m.impl("fake_quantize_per_tensor", &fake_quantize_per_tensor_autograd);
  m.impl("fake_quantize_per_channel", &fake_quantize_per_channel_autograd);
  m.impl("_fake_quantize_per_tensor_mask", &fake_quantize_per_tensor_mask_autograd);
  m.impl("_fake_quantize_per_channel_mask", &fake_quantize_per_channel_mask_autograd);
  m.impl("_mask_gradient", &mask_gradient_autograd);
}

}  // namespace
}  // namespace horizon::ops
