#pragma once

#include <ATen/core/Tensor.h>

namespace horizon::ops {

/// A weight in memory, [blocks, outer, channels, inner]: the output channels of block b are
/// b * channels, …; only transposed convolutions have more than one block, their groups.
struct DenseWeight {
  at::Tensor values;  ///< the weight, or a copy that is contiguous
  int64_t blocks = 1, outer = 1, channels = 1, inner = 1;

  int64_t block_size() const { return outer * channels * inner; }
  int64_t out_channels() const { return blocks * channels; }
};

/// The layout of a checked weight (ops/weights.h).
DenseWeight dense_weight(const at::Tensor& weight, int64_t base, int64_t groups);

/// `dense`, with the shape of `weight`, in the strides that empty_like(weight) has.
at::Tensor in_layout_of(const at::Tensor& weight, const at::Tensor& dense);

}  // namespace horizon::ops
