#include "ops/weights.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include "ops/checks.h"

namespace horizon::ops {
namespace {

at::Tensor weight_scale_meta(const at::Tensor& weight, int64_t base, int64_t groups) {
  const c10::SymInt channels = check_weight("weight_scale", weight, base, groups);
  return at::empty_symint({channels}, weight.options().dtype(at::kFloat));
}

at::Tensor quantize_weight_meta(const at::Tensor& weight, const at::Tensor& scale, int64_t base,
                                int64_t groups) {
  check_quantize_weight(weight, scale, base, groups);
  return at::empty_like(weight, weight.options().dtype(at::kChar));
}

at::Tensor fake_quantize_weight_meta(const at::Tensor& weight, int64_t base, int64_t groups) {
  check_weight("fake_quantize_weight", weight, base, groups);
  return at::empty_like(weight);
}

TORCH_LIBRARY_IMPL(horizon, Meta, m) {
  m.impl("weight_scale", &weight_scale_meta);
  m.impl("quantize_weight", &quantize_weight_meta);
  m.impl("fake_quantize_weight", &fake_quantize_weight_meta);
}

}  // namespace
}  // namespace horizon::ops
