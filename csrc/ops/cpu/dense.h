#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>

#include "ops/cpu/kernels/float_types.h"

namespace horizon::cpu {

/// The kernels' name of a float dtype (checked before).
FloatType float_type(at::ScalarType type);

/// An elementwise op's result, and memory in the same order that holds its input: the input itself
/// if it is dense, else the result, into which the input was copied.
struct DenseCopy {
  at::Tensor source;
  at::Tensor result;
};

/// Prepares a result with the dtype of x, its shape and its order of dimensions in memory.
DenseCopy dense_result(const at::Tensor& x);

/// x, or a copy of it that is dense in the same order of dimensions.
at::Tensor dense_input(const at::Tensor& x);

/// Runs body(begin, end) in parallel on pieces of [0, count) that begin at multiples of kBlock.
template <typename Body>
void parallel_blocks(int64_t count, const Body& body) {
  constexpr int64_t kGrain = 32768 / kBlock;
  at::parallel_for(0, (count + kBlock - 1) / kBlock, kGrain, [&](int64_t begin, int64_t end) {
    body(begin * kBlock, std::min<int64_t>(end * kBlock, count));
  });
}

}  // namespace horizon::cpu
