#include "ops/observe.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/library.h>

namespace horizon::ops {
namespace {

// Ranges are statistics: nothing flows through them.
void observe_autograd(const at::Tensor& x, const at::Tensor& min_val, const at::Tensor& max_val,
                      const at::Tensor& observed, const at::Tensor& scale,
                      const at::Tensor& zero_point, int64_t preset, int64_t observer,
                      double averaging_constant, bool skip_nonfinite) {
  at::AutoDispatchBelowADInplaceOrView guard;
  observe_(x, min_val, max_val, observed, scale, zero_point, preset, observer, averaging_constant,
           skip_nonfinite);
}

TORCH_LIBRARY_IMPL(horizon, Autograd, m) { m.impl("observe_", &observe_autograd); }

}  // namespace
}  // namespace horizon::ops
