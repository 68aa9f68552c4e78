#include "ops/fold_batch_norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <cmath>

#include "ops/checks.h"

namespace horizon::ops {
namespace {

constexpr const char* kOp = "fold_batch_norm";

TORCH_LIBRARY_FRAGMENT(horizon, m) {
  m.def(
      "fold_batch_norm(Tensor? bias, Tensor? gamma, Tensor? beta, Tensor? mean, Tensor? var, "
      "float eps, SymInt channels) -> (Tensor, Tensor)");
}

using Optional = const std::optional<at::Tensor>&;

bool given(Optional tensor) { return tensor.has_value() && tensor->defined(); }

std::tuple<at::Tensor, at::Tensor> fold_batch_norm_composite(Optional bias, Optional gamma,
                                                             Optional beta, Optional mean,
                                                             Optional var, double eps,
                                                             c10::SymInt channels) {
  HORIZON_CHECK_VALUE(channels >= 0, kOp, "channels", "at least 0", channels);
  HORIZON_CHECK_VALUE(std::isfinite(eps) && eps >= 0, kOp, "eps", "finite and at least 0", eps);
  HORIZON_CHECK_VALUE(given(mean) == given(var), kOp, "mean", "given together with 'var'",
                      given(mean) ? "mean without var" : "var without mean");
  const at::Tensor* reference = nullptr;
  const char* reference_name = "";
  const auto as_double = [&](const char* name, Optional tensor) -> at::Tensor {
    if (!given(tensor)) return {};
    check_float(kOp, name, *tensor);
    check_shape(kOp, name, *tensor, {channels});
    if (reference != nullptr) check_device(kOp, name, *tensor, *reference, reference_name);
    reference = &*tensor;
    reference_name = name;
    return tensor->to(at::kDouble);
  };
  const at::Tensor bias64 = as_double("bias", bias);
  const at::Tensor gamma64 = as_double("gamma", gamma);
  const at::Tensor beta64 = as_double("beta", beta);
  const at::Tensor mean64 = as_double("mean", mean);
  const at::Tensor var64 = as_double("var", var);
  const auto options =
      at::TensorOptions()
          .dtype(at::kDouble)
          .device(reference == nullptr ? at::Device(at::kCPU) : reference->device());

  if (!mean64.defined()) {
    const at::Tensor offset =
        bias64.defined() ? bias64.clone() : at::zeros_symint({channels}, options);
    return {at::ones_symint({channels}, options), offset};
  }
  // One operation a line: the order is part of the arithmetic, and none may be contracted.
  const at::Tensor sigma = (var64 + eps).sqrt();
  const at::Tensor factor = gamma64.defined() ? gamma64 / sigma : sigma.reciprocal();
  const at::Tensor shift = mean64 * factor;
  at::Tensor offset = beta64.defined() ? beta64 - shift : -shift;
  if (bias64.defined()) offset = bias64 * factor + offset;
  return {factor, offset};
}

TORCH_LIBRARY_IMPL(horizon, CompositeImplicitAutograd, m) {
  m.impl("fold_batch_norm", &fold_batch_norm_composite);
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> fold_batch_norm(Optional bias, Optional gamma, Optional beta,
                                                   Optional mean, Optional var, double eps,
                                                   int64_t channels) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("horizon::fold_batch_norm", "")
          .typed<std::tuple<at::Tensor, at::Tensor>(Optional, Optional, Optional, Optional,
                                                    Optional, double, c10::SymInt)>();
  return op.call(bias, gamma, beta, mean, var, eps, channels);
}

}  // namespace horizon::ops
