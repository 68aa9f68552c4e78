#pragma once

#include <ATen/core/Tensor.h>

namespace horizon::ops {

/// What a backward pass computes only to hand it to a convolution: one buffer of a thread for each.
enum class Scratch : size_t { kInput, kGradient };

/// An uninitialized dense tensor in memory that the next call on this thread with this use gets
/// again, so that large steps pay for no fresh pages. Results larger than 64 MiB are ordinary
/// tensors. It must not outlive the call of the operator that asks for it.
at::Tensor scratch_tensor(Scratch use, at::IntArrayRef sizes, at::IntArrayRef strides,
                          at::ScalarType type);

}  // namespace horizon::ops
