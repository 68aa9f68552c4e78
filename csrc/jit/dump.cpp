#include "jit/dump.h"

#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/ir/ir.h>

#include <sstream>
#include <unordered_map>

#include "jit/classify.h"
#include "jit/facts.h"
#include "jit/op_support.h"
#include "jit/pairs.h"

namespace horizon::jit {
namespace {

using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;

std::string relay_name(const Node* node) {
  const std::string name = op_name(node);
  if (const auto op = anchor_op(node)) {
    if (op->kind == "linear") return name == "aten::linear" ? "dense" : "horizon.fused_dense";
    // Relay calls a transposed convolution by its direction last.
    std::string kind = op->kind;
    if (kind.rfind("conv_transpose", 0) == 0)
      kind = c10::str("conv", kind.substr(14), "_transpose");
    return name == "horizon::fused" ? c10::str("horizon.fused_", kind) : kind;
  }
  const OpSupport* support = find_op_support(name);
  if (support != nullptr && support->relay != nullptr) return support->relay;
  const std::size_t colons = name.find("::");
  const std::string space = name.substr(0, colons), rest = name.substr(colons + 2);
  return space == "aten" || space == "prim" ? rest : c10::str(space, ".", rest);
}

bool holds_tensors(const Value* value) {
  const auto type = value->type();
  if (type->kind() == c10::TypeKind::TensorType) return true;
  for (const auto& inner : type->containedTypes()) {
    if (inner->kind() == c10::TypeKind::TensorType) return true;
  }
  return false;
}

class Printer {
 public:
  std::string print(Graph& graph) {
    for (const Value* input : graph.inputs()) {
      // Numbers are the names of results.
      names_[input] = input->hasDebugName() ? c10::str("%", input->debugName())
                                            : c10::str("%input", input->offset());
    }
    print_nodes(graph.block(), "");
    out_ << "return " << list(graph.outputs()) << "\n";
    return out_.str();
  }

 private:
  static bool is_inline(const Node* node) {
    return node->kind() == c10::prim::Constant || node->kind() == c10::prim::ListConstruct ||
           node->kind() == c10::prim::TupleConstruct || node->kind() == c10::prim::GetAttr;
  }

  void print_nodes(Block* block, const std::string& indent) {
    for (Node* node : block->nodes()) {
      if (is_inline(node)) continue;
      out_ << indent;
      std::string separator;
      for (const Value* value : node->outputs()) {
        names_[value] = c10::str("%", count_++);
        out_ << separator << names_[value];
        separator = ", ";
      }
      if (!node->outputs().empty()) out_ << " = ";
      out_ << relay_name(node) << "(" << arguments(node) << ")\n";
      for (Block* inner : node->blocks()) print_block(inner, indent + "  ");
    }
  }

  void print_block(Block* block, const std::string& indent) {
    for (const Value* value : block->inputs()) names_[value] = c10::str("%", count_++);
    out_ << indent << "block" << (block->inputs().empty() ? "" : " ") << list(block->inputs())
         << "\n";
    print_nodes(block, indent + "  ");
    out_ << indent << "  yield " << list(block->outputs()) << "\n";
  }

  std::string arguments(const Node* node) {
    if (is_cast_hint(node)) {
      const auto dtype = torch::jit::constant_as<std::string>(node->inputs()[1]);
      return c10::str(text(node->inputs()[0]), ", dtype=\"", dtype.value_or("?"), "\"");
    }
    const OpSupport* support = find_op_support(op_name(node));
    const bool arithmetic = support != nullptr && support->role == Role::kArithmetic;
    const bool all = node->kind() == c10::prim::If || node->kind() == c10::prim::Loop;
    std::string arguments;
    for (std::size_t i = 0; i < node->inputs().size(); ++i) {
      const Value* value = node->inputs()[i];
      if (!all && !holds_tensors(value) && !(arithmetic && i < 2)) continue;
      arguments += (arguments.empty() ? "" : ", ") + text(value);
    }
    return arguments;
  }

  std::string list(at::ArrayRef<Value*> values) {
    if (values.size() == 1) return text(values[0]);
    std::string joined;
    for (const Value* value : values) joined += (joined.empty() ? "" : ", ") + text(value);
    return values.empty() ? "" : c10::str("(", joined, ")");
  }

  std::string text(const Value* value) {
    const Node* node = value->node();
    if (node->kind() == c10::prim::ListConstruct || node->kind() == c10::prim::TupleConstruct) {
      std::string joined;
      for (const Value* item : node->inputs()) joined += (joined.empty() ? "" : ", ") + text(item);
      return node->kind() == c10::prim::ListConstruct ? c10::str("[", joined, "]")
                                                      : c10::str("(", joined, ")");
    }
    std::string& name = names_[value];
    if (!name.empty()) return name;
    const auto constant = torch::jit::toIValue(value);
    if (constant.has_value() && !constant->isTensor()) {
      std::ostringstream number;
      number << *constant;
      return name = number.str();
    }
    return name = c10::str("meta[Constant][", constants_++, "]");
  }

  std::ostringstream out_;
  std::unordered_map<const Value*, std::string> names_;
  std::size_t count_ = 0;
  std::size_t constants_ = 0;
};

}  // namespace

std::string dump_relay(const std::shared_ptr<Graph>& graph) { return Printer().print(*graph); }

}  // namespace horizon::jit
