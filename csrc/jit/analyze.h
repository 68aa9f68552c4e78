#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "jit/pairs.h"
#include "jit/partition.h"

namespace horizon::jit {

/// An operand that is to read the pair of its value.
struct BracketedUse {
  torch::jit::Node* user;
  std::size_t input;
  torch::jit::Value* value;
};

/// A node whose result lies in a region.
struct RegionNode {
  torch::jit::Node* node;
  torch::jit::Value* data;  ///< a follower's operand; nullptr for anchors and joins
  bool anchor;
};

/// What a partition does to a graph; made without changing it.
struct Analysis {
  std::vector<RegionNode> region_nodes;       ///< in the order of execution
  std::vector<torch::jit::Value*> annotated;  ///< values with a pair, in the order of the graph
  std::vector<BracketedUse> uses;
  std::vector<ConvolutionReport> convolutions;
};

/// Errors carry `call` as the op's name.
Analysis analyze(const std::shared_ptr<torch::jit::Graph>& graph, const PartitionOptions& options,
                 const char* call);

}  // namespace horizon::jit
