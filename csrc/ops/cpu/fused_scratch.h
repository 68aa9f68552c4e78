#pragma once

#include <ATen/core/Tensor.h>

namespace horizon::ops {

/// What a backward pass computes only to hand it to a convolution: one buffer of a thread for each.
enum class Scratch : size_t { kInput, kGradient };

/// An uninitialized dense tensor in memory that the next call on this thread with this use gets
/// again, so that a backward pass takes fresh pages once and not for every layer. Results larger
/// than 64 MiB are ordinary tensors. It must not outlive the call of the operator that asks for it.
at::Tensor scratch_tensor(Scratch use, at::IntArrayRef sizes, at::IntArrayRef strides,
                          at::ScalarType type);

/// Frees this thread's scratch memory: a forward pass needs the room for what it saves.
void release_scratch();

}  // namespace horizon::ops
