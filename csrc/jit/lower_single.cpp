#include "jit/lower_single.h"

#include <torch/csrc/jit/ir/constants.h>

#include <algorithm>
#include <string>
#include <utility>

#include "jit/facts.h"
#include "jit/lower_grids.h"
#include "jit/lower_match.h"
#include "jit/pairs.h"

namespace horizon::jit {
namespace {

using torch::jit::Node;
using torch::jit::Value;

bool is_tensor_to_tensor(const Node* node) {
  return node->outputs().size() == 1 && !node->inputs().empty() && node->blocks().empty() &&
         node->output()->type()->kind() == c10::TypeKind::TensorType &&
         node->inputs()[0]->type()->kind() == c10::TypeKind::TensorType;
}

bool is_dropout_in_eval_mode(const Node* node) {
  const std::string name = op_name(node);
  if (name != "aten::dropout" && name != "aten::feature_dropout") return false;
  const Value* train = named_input(node, "train");
  return train != nullptr && torch::jit::constant_as<bool>(train) == false;
}

bool moves(const Node* node) {
  return is_tensor_to_tensor(node) &&
         (moves_elements(op_name(node)) || is_dropout_in_eval_mode(node));
}

void append_move(Node* node, SingleOp& single) {
  single.moves.push_back(node);
  if (!moves_elements(op_name(node))) single.passed.push_back(node);
}

bool match_cat(const Node* node, SingleOp& single) {
  const Node* list = node->inputs()[0]->node();
  if (list->kind() != c10::prim::ListConstruct || list->output()->uses().size() != 1) return false;
  single.name = "quantized_cat";
  for (const Value* value : list->inputs()) single.operands.push_back(const_cast<Value*>(value));
  single.rest = {const_cast<Node*>(node)->input(1)};
  return !single.operands.empty();
}

bool match_start(Node* node, SingleOp& single) {
  const std::string name = op_name(node);
  if (name == "aten::cat") return match_cat(node, single);
  if (!is_tensor_to_tensor(node)) return false;
  single.operands = {node->input(0)};
  if (moves(node)) {
    append_move(node, single);
    return true;
  }
  single.rest.assign(node->inputs().begin() + 1, node->inputs().end());
  if (name == "aten::avg_pool2d") {
    single.name = "quantized_avg_pool2d";
    return true;
  }
  if (name == "aten::adaptive_avg_pool2d") {
    single.name = "quantized_adaptive_avg_pool2d";
    return true;
  }
  const Value* dim = named_input(node, "dim");
  if (name != "aten::mean" || dim == nullptr || dim->type()->kind() != c10::TypeKind::ListType ||
      !named_input(node, "dtype")->mustBeNone()) {
    return false;
  }
  single.name = "quantized_mean";
  single.rest.pop_back();
  return true;
}

// The only reader of a value that reads more than its shape; nullptr where there are others.
Node* only_reader(const Value* value) {
  Node* reader = nullptr;
  for (const torch::jit::Use& use : value->uses()) {
    if (reads_shape(use.user)) continue;
    if (reader != nullptr || use.offset != 0) return nullptr;
    reader = use.user;
  }
  return reader;
}

}  // namespace

std::optional<SingleOp> match_single_op(Node* node, const torch::jit::Module& module) {
  SingleOp single;
  single.node = node;
  if (!match_start(node, single)) return std::nullopt;
  const bool from_pairs =
      std::all_of(single.operands.begin(), single.operands.end(),
                  [](const Value* operand) { return is_stop_fusion(operand->node()); });
  if (!from_pairs) return std::nullopt;
  Value* value = node->output();
  bool quantizes = false;
  for (;;) {
    Node* reader = only_reader(value);
    if (reader == nullptr || reader->owningBlock() != node->owningBlock()) return std::nullopt;
    if (is_cast_hint(reader)) break;
    const bool quantizer = is_fake_quantize(op_name(reader));
    if (quantizer ? quantizes || !spans_all_codes(reader, module) : !moves(reader)) {
      return std::nullopt;
    }
    quantizes = quantizes || quantizer;
    append_move(reader, single);
    value = reader->output();
  }
  single.result = value;
  return single;
}

}  // namespace horizon::jit
