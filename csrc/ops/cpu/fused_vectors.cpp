#include "ops/cpu/fused_vectors.h"

#include <ATen/ops/empty.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

namespace horizon::cpu {
namespace {

template <typename Function>
void with_type(at::ScalarType type, const Function& function) {
  switch (type) {
    case at::kDouble:
      return function(double{});
    case at::kHalf:
      return function(at::Half{});
    case at::kBFloat16:
      return function(at::BFloat16{});
    default:
      TORCH_INTERNAL_ASSERT(type == at::kFloat);
      return function(float{});
  }
}

void store(const at::Tensor& tensor, const std::vector<double>& values) {
  with_type(tensor.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    T* data = tensor.mutable_data_ptr<T>();
    const int64_t stride = tensor.stride(0);
    for (size_t i = 0; i < values.size(); ++i) {
      data[static_cast<int64_t>(i) * stride] = static_cast<T>(values[i]);
    }
  });
}

}  // namespace

std::vector<double> read_vector(const std::optional<at::Tensor>& tensor, int64_t size,
                                double otherwise) {
  std::vector<double> values(static_cast<size_t>(size), otherwise);
  if (!tensor.has_value()) return values;
  with_type(tensor->scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const T* data = tensor->const_data_ptr<T>();
    const int64_t stride = tensor->stride(0);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<double>(data[static_cast<int64_t>(i) * stride]);
    }
  });
  return values;
}

void write_vector(const at::Tensor& tensor, const std::vector<double>& values) {
  store(tensor, values);
  if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
}

at::Tensor make_vector(const std::vector<double>& values, at::ScalarType type) {
  at::Tensor result =
      at::empty({static_cast<int64_t>(values.size())}, at::device(at::kCPU).dtype(type));
  store(result, values);
  return result;
}

}  // namespace horizon::cpu
