#include "ops/codes_io.h"

#include <ATen/ops/empty_like.h>
#include <torch/library.h>

namespace horizon::ops {
namespace {

at::Tensor quantize_meta(const at::Tensor& x, const at::Tensor& scale,
                         const at::Tensor& zero_point) {
  check_quantize(x, scale, zero_point);
  return at::empty_like(x, x.options().dtype(at::kByte));
}

at::Tensor dequantize_meta(const at::Tensor& q, const at::Tensor& scale,
                           const at::Tensor& zero_point, std::optional<at::ScalarType> dtype) {
  return at::empty_like(q, q.options().dtype(check_dequantize(q, scale, zero_point, dtype)));
}

TORCH_LIBRARY_IMPL(horizon, Meta, m) {
  m.impl("quantize", &quantize_meta);
  m.impl("dequantize", &dequantize_meta);
}

}  // namespace
}  // namespace horizon::ops
