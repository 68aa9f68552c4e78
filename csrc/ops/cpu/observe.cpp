#include "ops/observe.h"

#include <torch/library.h>

#include "ops/checks.h"
#include "ops/cpu/extremes.h"
#include "ops/quantizer.h"

namespace horizon::ops {
namespace {

void observe_cpu(const at::Tensor& x, const at::Tensor& min_val, const at::Tensor& max_val,
                 const at::Tensor& observed, const at::Tensor& scale, const at::Tensor& zero_point,
                 int64_t preset, int64_t observer, double averaging_constant, bool skip_nonfinite) {
  check_float("observe_", "x", x);
  const QuantizerArgs q{min_val,    max_val, observed,      scale,
                        zero_point, preset,  observer,      averaging_constant,
                        true,       false,   skip_nonfinite};
  check_quantizer("observe_", q, x);
  if (x.numel() == 0 || !q.observes()) return;
  const auto [lo, hi] = cpu::extremes(x);
  observe_range(q, lo, hi);
}

TORCH_LIBRARY_IMPL(horizon, CPU, m) { m.impl("observe_", &observe_cpu); }

}  // namespace
}  // namespace horizon::ops
