#include "ops/codes_io.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/library.h>

#include "ops/checks.h"

namespace horizon::ops {
namespace {

// Codes are integers: nothing flows through them.
at::Tensor quantize_autograd(const at::Tensor& x, const at::Tensor& scale,
                             const at::Tensor& zero_point) {
  at::AutoDispatchBelowADInplaceOrView guard;
  return quantize(x, scale, zero_point);
}

at::Tensor dequantize_autograd(const at::Tensor& q, const at::Tensor& scale,
                               const at::Tensor& zero_point, std::optional<at::ScalarType> dtype) {
  check_no_gradient("dequantize", "scale", scale);
  at::AutoDispatchBelowADInplaceOrView guard;
  return dequantize(q, scale, zero_point, dtype);
}

TORCH_LIBRARY_IMPL(horizon, Autograd, m) {
  m.impl("quantize", &quantize_autograd);
  m.impl("dequantize", &dequantize_autograd);
}

}  // namespace
}  // namespace horizon::ops
