#pragma once

#include <ATen/core/Tensor.h>

namespace horizon::ops {

/// What a pass computes only to hand it to a convolution: one buffer of a thread for each.
enum class Scratch : size_t { kInput, kGradient, kWeight };

/// An uninitialized dense tensor in memory that the next call on this thread with this use gets
/// again, so that a backward pass takes fresh pages once and not for every layer. Results larger
/// than 64 MiB are ordinary tensors. It must not outlive the call of the operator that asks for it.
at::Tensor scratch_tensor(Scratch use, at::IntArrayRef sizes, at::IntArrayRef strides,
                          at::ScalarType type);

/// `fake_quantize_weight` of a weight that was checked, in scratch memory and a dense layout.
at::Tensor scratch_weight(const at::Tensor& weight, int64_t base, int64_t groups);

/// Frees this thread's scratch memory: a forward pass needs the room for what it saves.
void release_scratch();

}  // namespace horizon::ops
