#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/jit/ir/ir.h>

#include <optional>
#include <vector>

#include "jit/groups.h"

namespace horizon::jit {

/// A group in the terms of horizon's integer operators.
struct IntegerGroup {
  enum class Head { kConvolution, kAdd, kMul };
  Head head = Head::kConvolution;

  // Of a convolution or linear.
  int64_t base = 0;
  at::Tensor weight, bias;
  bool trained = false;          ///< of a prepared model, whose codes are those of abs-max scales
  bool one_dimensional = false;  ///< of [.., channels, length]: the lists have a height of one
  std::vector<int64_t> stride{1, 1}, padding{0, 0}, dilation{1, 1}, output_padding{0, 0};
  int64_t groups = 1;
  at::Tensor gamma, beta, mean, var;  ///< of a batch norm; mean is undefined without one
  double eps = 0;

  /// The results of pairs: data (and the skip of a fused add), or both of a join.
  std::vector<torch::jit::Value*> operands;
  int64_t activation = 0;                ///< 0 none, 1 relu, 2 relu6
  std::vector<torch::jit::Node*> pools;  ///< max poolings, which keep the grid
  bool quantizes = false;                ///< ends in a fake-quantize, whose grid the result has
  torch::jit::Value* result = nullptr;
};

/// nullopt for a group that these operators do not compute.
std::optional<IntegerGroup> match_integer_group(const Group& group,
                                                const torch::jit::Module& module);

/// The inputs of a node that its counterpart on codes does not take as they are.
struct PoolWindow {
  std::vector<int64_t> kernel_size, stride, padding, dilation;
};

/// The window of a max_pool1d with constant arguments, as one of height one.
std::optional<PoolWindow> window_of(const torch::jit::Node* node);

/// Whether the node reads what a value and its codes have in common.
bool reads_shape(const torch::jit::Node* node);

/// The value whose range is that of `value`: back through max poolings and dropouts.
torch::jit::Value* range_of(torch::jit::Value* value);

}  // namespace horizon::jit
