#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <string>
#include <unordered_map>
#include <vector>

namespace horizon::jit {

/// Every node of a graph, blocks included, in the order of execution.
std::vector<torch::jit::Node*> all_nodes(torch::jit::Graph& graph);

bool is_cast_hint(const torch::jit::Node* node);
bool is_stop_fusion(const torch::jit::Node* node);

/// The annotated values of a graph. `[v]`, the result of a pair, is `stop_fusion(cast_hint(v))`.
class Pairs {
 public:
  /// ValueError, with `call` as the op's name, for annotations that are no pairs, a second pair of
  /// one value, a pair in another block than its value, or another dtype than `dtype`.
  Pairs(const std::vector<torch::jit::Node*>& nodes, const std::string& dtype, const char* call);

  /// v for [v], any other value as it is.
  torch::jit::Value* source(torch::jit::Value* value) const;

  /// [v], or nullptr where v has no pair.
  torch::jit::Value* pair_of(const torch::jit::Value* value) const;

 private:
  std::unordered_map<const torch::jit::Value*, torch::jit::Value*> sources_;
  std::unordered_map<const torch::jit::Value*, torch::jit::Value*> pairs_;
};

/// Inserts a pair right after the producer of each value, graph inputs at the top of their block,
/// and returns the results in the order of `values`, which is that of the graph.
std::vector<torch::jit::Value*> insert_pairs(torch::jit::Graph& graph,
                                             const std::vector<torch::jit::Value*>& values,
                                             const std::string& dtype);

}  // namespace horizon::jit
