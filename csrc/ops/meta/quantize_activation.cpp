#include "ops/quantize_activation.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include "ops/checks.h"
#include "ops/fake_quantize.h"

namespace horizon::ops {
namespace {

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> run(const at::Tensor& x,
                                                               const QuantizerArgs& q,
                                                               bool with_mask) {
  check_float("quantize_activation", "x", x);
  check_quantizer("quantize_activation", q, x);
  auto [scale, zero_point] = meta_qparams(q, x);
  const at::Tensor mask = at::empty_symint(
      {with_mask && q.quantizes() ? mask_size(x) : c10::SymInt(0)}, x.options().dtype(at::kByte));
  return {at::empty_like(x), scale, zero_point, mask};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> quantize_activation_meta(
    const at::Tensor& x, const std::optional<at::Tensor>& min_val,
    const std::optional<at::Tensor>& max_val, const std::optional<at::Tensor>& observed,
    const std::optional<at::Tensor>& scale, const std::optional<at::Tensor>& zero_point,
    int64_t preset, int64_t observer, double averaging_constant, bool observe, bool fake_quantize,
    bool skip_nonfinite) {
  auto [y, s, z, mask] = run(x,
                             {min_val, max_val, observed, scale, zero_point, preset, observer,
                              averaging_constant, observe, fake_quantize, skip_nonfinite},
                             false);
  return {y, s, z};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> quantize_activation_mask_meta(
    const at::Tensor& x, const std::optional<at::Tensor>& min_val,
    const std::optional<at::Tensor>& max_val, const std::optional<at::Tensor>& observed,
    const std::optional<at::Tensor>& scale, const std::optional<at::Tensor>& zero_point,
    int64_t preset, int64_t observer, double averaging_constant, bool observe, bool fake_quantize,
    bool skip_nonfinite) {
  return run(x,
             {min_val, max_val, observed, scale, zero_point, preset, observer, averaging_constant,
              observe, fake_quantize, skip_nonfinite},
             true);
}

TORCH_LIBRARY_IMPL(horizon, Meta, m) {
  m.impl("quantize_activation", &quantize_activation_meta);
  m.impl("_quantize_activation_mask", &quantize_activation_mask_meta);
}

}  // namespace
}  // namespace horizon::ops
