#include "jit/prepare.h"

#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/passes/freeze_module.h>
#include <torch/csrc/jit/passes/frozen_conv_folding.h>
#include <torch/csrc/jit/passes/inliner.h>
#include <torch/csrc/jit/passes/remove_mutation.h>

#include "jit/classify.h"
#include "jit/pairs.h"
#include "jit/partition.h"
#include "ops/checks.h"

namespace horizon::jit {
namespace {

using torch::jit::Graph;
using torch::jit::Node;

// Freezing forgets the dtypes of inputs, which say that integers are not to be annotated.
void keep_integer_inputs(Graph& from, Graph& to) {
  if (from.inputs().size() != to.inputs().size()) return;
  for (std::size_t i = 0; i < from.inputs().size(); ++i) {
    const auto type = from.inputs()[i]->type()->cast<c10::TensorType>();
    if (type == nullptr || !type->scalarType() || at::isFloatingType(*type->scalarType())) continue;
    to.inputs()[i]->setType(
        c10::TensorType::create(*type->scalarType(), std::nullopt, c10::SymbolicShape(),
                                c10::VaryingShape<c10::Stride>(), std::nullopt));
  }
}

}  // namespace

void check_registered(Graph& graph, const char* call) {
  for (const Node* node : all_nodes(graph)) {
    if (node->kind().is_prim() || node->maybeSchema() != nullptr) continue;
    const std::string library = node->kind().ns().toUnqualString();
    const std::string name = op_name(node);
    const bool known = !torch::jit::getAllOperatorsFor(node->kind()).empty();
    HORIZON_CHECK_VALUE(
        false, call, "obj", "a graph of registered operators",
        known ? c10::str(name, " with other arguments than any overload takes")
              : c10::str(name, "; import the library that registers '", library, "' first"));
  }
}

void prepare_graph(const std::shared_ptr<Graph>& graph) {
  torch::jit::Inline(*graph);
  torch::jit::RemoveTensorMutation(graph);
  check_eval_mode(all_nodes(*graph));
}

torch::jit::Module prepare_module(const torch::jit::Module& module) {
  // A frozen module has no attribute `training` left, and cannot be frozen again.
  if (!module.hasattr("training")) return module.clone();
  HORIZON_CHECK_VALUE(!module.is_training(), "partition", "obj", "in eval mode",
                      "a module in training mode; call eval() first");
  torch::jit::Module frozen = torch::jit::freeze_module(module);
  std::shared_ptr<Graph> graph = frozen.get_method("forward").graph();
  torch::jit::FoldFrozenConvBatchnorm(graph);
  keep_integer_inputs(*module.get_method("forward").graph(), *graph);
  return frozen;
}

}  // namespace horizon::jit
