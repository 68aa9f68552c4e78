#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <optional>
#include <type_traits>

#include "ops/cuda/launch.h"
#include "ops/fused.h"

// What the passes of the training op share. They are templates of a runner, which runs
// bodies, `runner(grid, body)`, and convolves: the device's (runner.h), or in tests the host's.
namespace horizon::ops::cuda {

/// Half types are computed in float.
template <typename S>
using ComputeType = std::conditional_t<std::is_same_v<S, double>, double, float>;

template <typename T>
constexpr at::ScalarType scalar_type() {
  return c10::CppTypeToScalarType<T>::value;
}

/// Calls function(S{}) with the type of a float dtype.
template <typename Function>
auto with_float_type(at::ScalarType type, const Function& function) {
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

/// An uninitialized vector on the device of `like`.
template <typename T>
at::Tensor vector(int64_t size, const at::Tensor& like) {
  return at::empty({size}, like.options().dtype(scalar_type<T>()));
}

/// Memory for `size` structures.
template <typename Struct>
class Buffer {
 public:
  Buffer(int64_t size, const at::Tensor& like)
      : bytes_(vector<uint8_t>(size * static_cast<int64_t>(sizeof(Struct)), like)) {}
  Struct* data() { return reinterpret_cast<Struct*>(bytes_.mutable_data_ptr<uint8_t>()); }

 private:
  at::Tensor bytes_;
};

/// A float vector or number as contiguous values of type V; null where there is none.
template <typename V>
class Values {
 public:
  explicit Values(const std::optional<at::Tensor>& tensor) {
    if (tensor.has_value()) tensor_ = tensor->to(scalar_type<V>()).contiguous();
  }
  const V* data() const {
    return tensor_.defined() ? tensor_.template const_data_ptr<V>() : nullptr;
  }

 private:
  at::Tensor tensor_;
};

/// Counts as an in-place change for autograd, which does not see writes through pointers.
inline void bump_version(const at::Tensor& tensor) {
  if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
}

/// A vector that a kernel changes in place, through a copy where its dtype or layout is another.
template <typename V>
class MovedValues {
 public:
  explicit MovedValues(const std::optional<at::Tensor>& tensor) {
    if (!tensor.has_value()) return;
    tensor_ = *tensor;
    work_ = tensor_.to(scalar_type<V>()).contiguous();
  }
  const V* data() const { return work_.defined() ? work_.template const_data_ptr<V>() : nullptr; }
  V* moved() { return work_.defined() ? work_.template mutable_data_ptr<V>() : nullptr; }
  /// After the kernel that writes.
  void write_back() {
    if (!work_.defined()) return;
    if (work_.is_same(tensor_)) return bump_version(tensor_);
    tensor_.copy_(work_);
  }

 private:
  at::Tensor tensor_, work_;
};

}  // namespace horizon::ops::cuda
