#include "ops/cpu/fused_scratch.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>

#include <array>

namespace horizon::ops {
namespace {

std::array<at::Tensor, 3>& thread_buffers() {
  thread_local std::array<at::Tensor, 3> buffers;
  return buffers;
}

}  // namespace

at::Tensor scratch_tensor(Scratch use, at::IntArrayRef sizes, at::IntArrayRef strides,
                          at::ScalarType type) {
  constexpr int64_t kMostBytes = int64_t{64} << 20;
  const auto options = at::device(at::kCPU).dtype(type);
  const int64_t bytes =
      c10::multiply_integers(sizes) * static_cast<int64_t>(c10::elementSize(type));
  if (bytes == 0 || bytes > kMostBytes) return at::empty_strided(sizes, strides, options);
  at::Tensor& buffer = thread_buffers()[static_cast<size_t>(use)];
  // The buffer outlives the mode that it is made in.
  c10::InferenceMode guard(false);
  if (!buffer.defined() || buffer.numel() < bytes) {
    buffer.reset();  // first, so that the two never exist at once
    buffer = at::empty({bytes}, at::device(at::kCPU).dtype(at::kByte));
  }
  return at::from_blob(buffer.mutable_data_ptr(), sizes, strides, options);
}

void release_scratch() {
  for (at::Tensor& buffer : thread_buffers()) buffer.reset();
}

}  // namespace horizon::ops
