#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <memory>
#include <unordered_set>
#include <vector>

namespace torch::jit {
class AliasDb;
}

namespace horizon::jit {

/// The name of a node's operator, without overload: "aten::conv2d".
std::string op_name(const torch::jit::Node* node);

/// The input that the schema calls `name`; nullptr where the operator has none of that name.
torch::jit::Value* named_input(const torch::jit::Node* node, const char* name);

/// What a walk over the nodes, in order, learns about their values.
class Facts {
 public:
  explicit Facts(torch::jit::Graph& graph);

  /// Visits the next node.
  void visit(const torch::jit::Node* node);

  /// Parameters, constants and what is computed from them alone.
  bool is_constant(const torch::jit::Value* value) const { return constants_.count(value) != 0; }

  /// Tensors known to hold integers or booleans.
  bool is_integer(const torch::jit::Value* value) const;

 private:
  std::unordered_set<const torch::jit::Value*> constants_;
  std::unordered_set<const torch::jit::Value*> integers_;
};

/// Which values are written in place after they were produced.
class Writers {
 public:
  Writers(const std::shared_ptr<torch::jit::Graph>& graph,
          const std::vector<torch::jit::Node*>& nodes);
  ~Writers();

  bool writes_later(torch::jit::Value* value) const;

 private:
  std::vector<torch::jit::Node*> nodes_;
  std::unique_ptr<torch::jit::AliasDb> aliases_;  // built only where there are writers
};

}  // namespace horizon::jit
