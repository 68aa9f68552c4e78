#include "ops/quantized_lookup.h"

#include <ATen/ops/empty_like.h>
#include <torch/library.h>

namespace horizon::ops {
namespace {

at::Tensor quantized_lookup_meta(const at::Tensor& q, const at::Tensor& table) {
  check_quantized_lookup(q, table);
  return at::empty_like(q);
}

}  // namespace
}  // namespace horizon::ops

TORCH_LIBRARY_IMPL(horizon, Meta, m) {
  m.impl("quantized_lookup", TORCH_FN(horizon::ops::quantized_lookup_meta));
}
