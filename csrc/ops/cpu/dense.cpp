#include "ops/cpu/dense.h"

#include <ATen/ops/empty_like.h>

namespace horizon::cpu {

FloatType float_type(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return FloatType::kFloat;
    case at::kDouble:
      return FloatType::kDouble;
    case at::kHalf:
      return FloatType::kHalf;
    case at::kBFloat16:
      return FloatType::kBFloat16;
    default:
      TORCH_INTERNAL_ASSERT(false, "not a float dtype: ", type);
  }
}

DenseCopy dense_result(const at::Tensor& x) {
  at::Tensor result = at::empty_like(x, at::MemoryFormat::Preserve);
  if (x.is_non_overlapping_and_dense()) return {x, result};
  result.copy_(x);
  return {result, result};
}

at::Tensor dense_input(const at::Tensor& x) {
  return x.is_non_overlapping_and_dense() ? x : dense_result(x).source;
}

}  // namespace horizon::cpu
