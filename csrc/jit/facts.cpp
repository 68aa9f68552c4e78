#include "jit/facts.h"

#include <torch/csrc/jit/ir/alias_analysis.h>
#include <torch/csrc/jit/ir/constants.h>

#include <algorithm>
#include <string_view>

#include "jit/op_support.h"

namespace horizon::jit {
namespace {

using torch::jit::Node;
using torch::jit::Value;

bool is_mutating(const Node* node) {
  const auto* schema = node->maybeSchema();
  return schema != nullptr && schema->is_mutable();
}

bool is_call(const Node* node) {
  return node->kind() == c10::prim::CallFunction || node->kind() == c10::prim::CallMethod;
}

bool is_pure(const Node* node) {
  return node->blocks().empty() && !is_call(node) && !is_mutating(node) &&
         !node->hasSideEffects() && !node->isNondeterministic();
}

bool declared_integer(const Value* value) {
  const auto type = value->type()->cast<c10::TensorType>();
  return type != nullptr && type->scalarType().has_value() &&
         !at::isFloatingType(*type->scalarType());
}

bool gives_integers(std::string_view name) {
  static constexpr std::string_view kNames[] = {
      "aten::argmax", "aten::argmin",      "aten::argsort",     "aten::bincount",   "aten::eq",
      "aten::ge",     "aten::gt",          "aten::isfinite",    "aten::isinf",      "aten::isnan",
      "aten::le",     "aten::logical_and", "aten::logical_not", "aten::logical_or", "aten::lt",
      "aten::ne",     "aten::nonzero",     "horizon::quantize"};
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

bool casts_to_integer(const Node* node) {
  const Value* dtype = named_input(node, "dtype");
  if (dtype == nullptr) return false;
  const auto given = torch::jit::toIValue(dtype);
  return given.has_value() && given->isInt() &&
         !at::isFloatingType(static_cast<at::ScalarType>(given->toInt()));
}

bool moves_elements(std::string_view name) {
  const OpSupport* support = find_op_support(name);
  return (support != nullptr && support->keeps_grid) || name == "aten::to" || name == "aten::cat";
}

}  // namespace

std::string op_name(const Node* node) { return node->kind().toQualString(); }

Value* named_input(const Node* node, const char* name) {
  const auto* schema = node->maybeSchema();
  if (schema == nullptr) return nullptr;
  const auto index = schema->argumentIndexWithName(name);
  return index.has_value() ? const_cast<Value*>(node->inputs()[*index]) : nullptr;
}

Facts::Facts(torch::jit::Graph& graph) {
  for (const Value* input : graph.inputs()) {
    if (input->type()->cast<c10::ClassType>() != nullptr) constants_.insert(input);  // self
  }
}

void Facts::visit(const Node* node) {
  const auto inputs = node->inputs();
  if (is_pure(node) && std::all_of(inputs.begin(), inputs.end(),
                                   [&](const Value* value) { return is_constant(value); })) {
    for (const Value* value : node->outputs()) constants_.insert(value);
  }
  const std::string name = op_name(node);
  const bool from_integers = !inputs.empty() && is_integer(inputs[0]);
  const bool number =
      node->kind() == c10::prim::NumToTensor && inputs[0]->type()->kind() == c10::TypeKind::IntType;
  if (number || gives_integers(name) || casts_to_integer(node) ||
      (from_integers && moves_elements(name) && named_input(node, "dtype") == nullptr)) {
    for (const Value* value : node->outputs()) integers_.insert(value);
  }
}

bool Facts::is_integer(const Value* value) const {
  return declared_integer(value) || integers_.count(value) != 0;
}

Writers::Writers(const std::shared_ptr<torch::jit::Graph>& graph, const std::vector<Node*>& nodes) {
  for (Node* node : nodes) {
    // Our own operators write the state of quantizers, which alias analysis cannot tell apart from
    // activations.
    if (is_mutating(node) && std::string_view(node->kind().ns().toUnqualString()) != "horizon") {
      nodes_.push_back(node);
    }
  }
  if (!nodes_.empty()) aliases_ = std::make_unique<torch::jit::AliasDb>(graph);
}

Writers::~Writers() = default;

bool Writers::writes_later(Value* value) const {
  if (aliases_ == nullptr || !aliases_->hasWriters(value)) return false;
  const Node* producer = value->node();
  return std::any_of(nodes_.begin(), nodes_.end(), [&](Node* writer) {
    return writer != producer &&
           (producer->kind() == c10::prim::Param || writer->isAfter(producer)) &&
           aliases_->writesToAlias(writer, {value});
  });
}

}  // namespace horizon::jit
