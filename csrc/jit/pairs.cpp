#include "jit/pairs.h"

#include <torch/csrc/jit/ir/constants.h>

#include "jit/partition.h"
#include "jit/record.h"
#include "ops/checks.h"

namespace horizon::jit {
namespace {

using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;

c10::Symbol cast_hint_kind() {
  static const c10::Symbol kind = c10::Symbol::fromQualString("annotation::cast_hint");
  return kind;
}

c10::Symbol stop_fusion_kind() {
  static const c10::Symbol kind = c10::Symbol::fromQualString("annotation::stop_fusion");
  return kind;
}

void collect(Block* block, std::vector<Node*>& nodes) {
  for (Node* node : block->nodes()) {
    nodes.push_back(node);
    for (Block* inner : node->blocks()) collect(inner, nodes);
  }
}

constexpr const char* kRule = "without annotations that a partition would not make";

void check(bool condition, const char* call, const std::string& got) {
  HORIZON_CHECK_VALUE(condition, call, "obj", kRule, c10::str(got, "; strip() it first"));
}

void check_pair(const Node* hint, const std::string& dtype, const char* call) {
  const std::string name = c10::str("%", hint->input(0)->debugName());
  const auto& uses = hint->output()->uses();
  check(uses.size() == 1 && is_stop_fusion(uses[0].user), call,
        c10::str("a cast_hint of ", name, " without its one stop_fusion"));
  const auto given = torch::jit::constant_as<std::string>(hint->input(1));
  check(given.has_value(), call, c10::str("a cast_hint of ", name, " whose dtype is computed"));
  check(*given == dtype, call, c10::str("a pair of ", name, " with dtype '", *given, "'"));
  const Block* home = hint->input(0)->node()->owningBlock();
  check(hint->owningBlock() == home && uses[0].user->owningBlock() == home, call,
        c10::str("a pair of ", name, " in another block"));
}

}  // namespace

std::vector<Node*> all_nodes(Graph& graph) {
  std::vector<Node*> nodes;
  collect(graph.block(), nodes);
  return nodes;
}

bool is_cast_hint(const Node* node) { return node->kind() == cast_hint_kind(); }

bool is_stop_fusion(const Node* node) { return node->kind() == stop_fusion_kind(); }

Pairs::Pairs(const std::vector<Node*>& nodes, const std::string& dtype, const char* call) {
  for (Node* node : nodes) {
    if (is_cast_hint(node)) {
      check_pair(node, dtype, call);
      Value* source = node->input(0);
      const std::string name = c10::str("%", source->debugName());
      check(!is_stop_fusion(source->node()), call, c10::str("a pair of the pair ", name));
      Value* pair = node->output()->uses()[0].user->output();
      check(pairs_.emplace(source, pair).second, call, c10::str("a second pair of ", name));
      sources_.emplace(pair, source);
    } else if (is_stop_fusion(node)) {
      check(is_cast_hint(node->input(0)->node()), call,
            c10::str("a stop_fusion of %", node->input(0)->debugName(), " without its cast_hint"));
    }
  }
}

Value* Pairs::source(Value* value) const {
  const auto found = sources_.find(value);
  return found == sources_.end() ? value : found->second;
}

Value* Pairs::pair_of(const Value* value) const {
  const auto found = pairs_.find(value);
  return found == pairs_.end() ? nullptr : found->second;
}

std::vector<Value*> insert_pairs(Graph& graph, const std::vector<Value*>& values,
                                 const std::string& dtype) {
  std::vector<Value*> pairs;
  if (values.empty()) return pairs;
  // One constant, where every block sees it.
  torch::jit::WithInsertPoint top(*graph.nodes().begin());
  Value* dtype_value = graph.insertConstant(dtype);
  // Pairs of one producer follow each other in the order of its outputs.
  std::unordered_map<const Node*, Node*> last;
  last.emplace(graph.param_node(), dtype_value->node());
  for (Value* value : values) {
    Node* producer = value->node();
    Node* after = last.emplace(producer, producer).first->second;
    Node* hint = graph.create(cast_hint_kind(), {value, dtype_value});
    Node* stop = graph.create(stop_fusion_kind(), {hint->output()});
    for (Node* node : {hint, stop}) {
      node->output()->setType(value->type());
      node->setSourceRange(producer->sourceRange());
      node->setScope(producer->scope());
      node->insertAfter(after);
      after = node;
    }
    last[producer] = stop;
    pairs.push_back(stop->output());
  }
  return pairs;
}

void strip_annotations(const std::shared_ptr<Graph>& graph) {
  for (Node* node : all_nodes(*graph)) {
    if (!is_cast_hint(node) && !is_stop_fusion(node)) continue;
    node->output()->replaceAllUsesWith(node->input(0));
    Node* dtype = is_cast_hint(node) ? node->input(1)->node() : nullptr;
    node->destroy();
    if (dtype != nullptr && dtype->kind() == c10::prim::Constant && !dtype->hasUses()) {
      dtype->destroy();
    }
  }
  erase_record(*graph);
}

}  // namespace horizon::jit
