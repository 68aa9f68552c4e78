#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/ir.h>

#include <functional>
#include <unordered_map>
#include <unordered_set>

#include "jit/facts.h"
#include "jit/groups.h"
#include "jit/pairs.h"
#include "jit/record.h"
#include "ops/checks.h"

namespace horizon::jit {
namespace {

using torch::jit::Graph;
using torch::jit::Module;
using torch::jit::Node;
using torch::jit::Value;

bool writes(const Node* node) {
  const auto* schema = node->maybeSchema();
  // Our own operators write the state of quantizers only.
  return schema != nullptr && schema->is_mutable() && op_name(node).rfind("horizon::", 0) != 0;
}

bool acts(const Node* node) { return node->hasSideEffects() || !node->blocks().empty(); }

// Nodes between the group's first and last that read what the group computes, and whatever acts
// after one of those: they go behind the group, in their order.
std::vector<Node*> readers_between(const Group& group) {
  std::unordered_set<const Node*> members(group.nodes.begin(), group.nodes.end());
  std::unordered_set<const Node*> late(group.nodes.begin(), group.nodes.end());
  std::vector<Node*> found;
  bool acted = false;
  const std::function<bool(Node*)> reads = [&](Node* node) {
    for (Value* input : node->inputs()) {
      if (late.count(input->node()) != 0) return true;
    }
    for (torch::jit::Block* block : node->blocks()) {
      for (Node* inner : block->nodes()) {
        if (reads(inner)) return true;
      }
      if (reads(block->return_node())) return true;
    }
    return false;
  };
  for (Node* node = group.nodes.front(); node != group.nodes.back(); node = node->next()) {
    if (members.count(node) != 0 || !(reads(node) || (acted && acts(node)))) continue;
    late.insert(node);
    found.push_back(node);
    acted = acted || acts(node);
  }
  return found;
}

bool can_move(const Group& group) {
  for (const Node* node = group.nodes.front();; node = node->next()) {
    if (writes(node)) return false;
    if (node == group.nodes.back()) return true;
  }
}

Node* insert_call(Graph& graph, Value* self, const std::string& name, const Module& module,
                  const Group& group) {
  Node* attribute = graph.createGetAttr(self, name);
  attribute->output()->setType(module.type());
  std::vector<Value*> inputs{attribute->insertAfter(group.nodes.back())->output()};
  inputs.insert(inputs.end(), group.entries.begin(), group.entries.end());
  Node* call = graph.create(c10::prim::CallMethod, inputs);
  call->s_(c10::attr::name, "forward");
  return call->insertAfter(attribute);
}

// Returns what stands for each exit now.
std::vector<Value*> replace_group(Graph& graph, Value* self, const std::string& name,
                                  const Module& module, const Group& group) {
  const std::vector<Node*> readers = readers_between(group);
  Node* call = insert_call(graph, self, name, module, group);
  call->setScope(group.nodes.back()->scope());
  Node* last = call;
  std::vector<Value*> results;
  if (group.exits.size() == 1) {
    call->output()->setType(group.exits[0]->type());
    results = {call->output()};
  } else {
    std::vector<c10::TypePtr> types;
    for (const Value* value : group.exits) types.push_back(value->type());
    call->output()->setType(c10::TupleType::create(types));
    last = graph.createTupleUnpack(call->output())->insertAfter(call);
    results.assign(last->outputs().begin(), last->outputs().end());
  }
  for (Node* reader : readers) {
    reader->moveAfter(last);
    last = reader;
  }
  for (std::size_t i = 0; i < results.size(); ++i) {
    group.exits[i]->replaceAllUsesWith(results[i]);
  }
  for (auto node = group.nodes.rbegin(); node != group.nodes.rend(); ++node) (*node)->destroy();
  return results;
}

}  // namespace

std::shared_ptr<Graph> extract(const Group& group) {
  auto graph = std::make_shared<Graph>();
  std::unordered_map<Value*, Value*> values;
  for (Value* entry : group.entries) {
    values[entry] = graph->addInput("entry")->setType(entry->type());
  }
  const std::function<Value*(Value*)> value_of = [&](Value* value) {
    const auto found = values.find(value);
    if (found != values.end()) return found->second;
    // A literal, the only thing that is neither an entry nor computed inside.
    Node* literal = graph->createClone(value->node(), value_of);
    graph->insertNode(literal);
    return values[value] = literal->output();
  };
  for (Node* node : group.nodes) {
    Node* clone = graph->insertNode(graph->createClone(node, value_of));
    for (std::size_t i = 0; i < node->outputs().size(); ++i) {
      values[node->output(i)] = clone->output(i);
    }
  }
  std::vector<Value*> exits;
  for (Value* exit : group.exits) exits.push_back(values.at(exit));
  graph->registerOutput(exits.size() == 1 ? exits[0]
                                          : graph->insertNode(graph->createTuple(exits))->output());
  return graph;
}

Module as_module(const std::shared_ptr<Graph>& graph, const std::string& name) {
  Module module("__torch__." + name);
  std::shared_ptr<Graph> copy = graph->copy();
  copy->insertInput(0, "self")->setType(module.type());
  const c10::QualifiedName forward(*module.type()->name(), "forward");
  module.type()->addMethod(
      module._ivalue()->compilation_unit()->create_function(forward, std::move(copy)));
  return module;
}

Module delegate(const Module& module, const std::vector<Module>& modules) {
  Module result = module.clone();
  const std::shared_ptr<Graph> graph = result.get_method("forward").graph();
  write_record(*graph, recorded_report(module.get_method("forward").graph()));
  std::vector<Group> found = groups(graph);
  std::unordered_map<const Value*, Value*> replaced;
  TORCH_INTERNAL_ASSERT(found.size() == modules.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (!can_move(found[i])) continue;
    for (Value*& entry : found[i].entries) {
      if (const auto now = replaced.find(entry); now != replaced.end()) entry = now->second;
    }
    const std::string name = c10::str("group_", i);
    result.register_module(name, modules[i]);
    const std::vector<Value*> results =
        replace_group(*graph, graph->inputs()[0], name, modules[i], found[i]);
    for (std::size_t j = 0; j < results.size(); ++j) replaced[found[i].exits[j]] = results[j];
  }
  graph->lint();
  return result;
}

}  // namespace horizon::jit
