#include "ops/observe.h"

#include <torch/library.h>

#include "ops/checks.h"
#include "ops/quantizer.h"

namespace horizon::ops {
namespace {

void observe_meta(const at::Tensor& x, const at::Tensor& min_val, const at::Tensor& max_val,
                  const at::Tensor& observed, const at::Tensor& scale, const at::Tensor& zero_point,
                  int64_t preset, int64_t observer, double averaging_constant,
                  bool skip_nonfinite) {
  check_float("observe_", "x", x);
  check_quantizer("observe_",
                  {min_val, max_val, observed, scale, zero_point, preset, observer,
                   averaging_constant, true, false, skip_nonfinite},
                  x);
}

TORCH_LIBRARY_IMPL(horizon, Meta, m) { m.impl("observe_", &observe_meta); }

}  // namespace
}  // namespace horizon::ops
