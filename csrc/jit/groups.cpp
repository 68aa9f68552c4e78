#include "jit/groups.h"

#include <torch/csrc/jit/ir/ir.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "jit/analyze.h"
#include "jit/pairs.h"
#include "jit/partition.h"

namespace horizon::jit {
namespace {

using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;

// Constants and lists of constants are part of whoever reads them.
bool is_literal(const Value* value) {
  const Node* node = value->node();
  if (node->kind() == c10::prim::Constant) return true;
  const bool list =
      node->kind() == c10::prim::ListConstruct || node->kind() == c10::prim::TupleConstruct;
  const auto inputs = node->inputs();
  return list && std::all_of(inputs.begin(), inputs.end(), is_literal);
}

// Nodes between `head` and `value` that `value` needs and that need the group themselves, such as
// the arithmetic on a size that scales the group's own result.
class Between {
 public:
  Between(std::unordered_set<const Node*>& members, const Node* head)
      : members_(members), head_(head) {}

  bool needs_group(Value* value) {
    Node* node = value->node();
    if (members_.count(node) != 0) return true;
    if (node->owningBlock() != head_->owningBlock() || node->kind() == c10::prim::Param ||
        node->isBefore(head_)) {
      return false;
    }
    const auto known = answers_.find(node);
    if (known != answers_.end()) return known->second;
    bool needs = false;
    for (Value* input : node->inputs()) needs = needs_group(input) || needs;
    answers_.emplace(node, needs);
    if (needs) found.push_back(node);
    return needs;
  }

  std::vector<Node*> found;

 private:
  const std::unordered_set<const Node*>& members_;
  const Node* head_;
  std::unordered_map<const Node*, bool> answers_;
};

void add_between(Group& group) {
  if (group.nodes.size() < 2) return;
  std::unordered_set<const Node*> members(group.nodes.begin(), group.nodes.end());
  Between between(members, group.nodes.front());
  for (const Node* node : std::vector<Node*>(group.nodes)) {
    for (Value* input : const_cast<Node*>(node)->inputs()) between.needs_group(input);
  }
  group.nodes.insert(group.nodes.end(), between.found.begin(), between.found.end());
  std::sort(group.nodes.begin(), group.nodes.end(),
            [](const Node* a, const Node* b) { return a != b && a->isBefore(b); });
}

void read_uses(const Node* node, const std::unordered_set<const Node*>& members,
               std::unordered_set<const Value*>& seen, std::vector<Value*>& entries) {
  for (const Value* input : node->inputs()) {
    Value* value = const_cast<Value*>(input);
    if (members.count(value->node()) != 0 || is_literal(value)) continue;
    if (seen.insert(value).second) entries.push_back(value);
  }
}

bool inside(const Node* node, const std::unordered_set<const Node*>& members) {
  for (; node != nullptr; node = node->owningBlock()->owningNode()) {
    if (members.count(node) != 0) return true;
  }
  return false;
}

void find_borders(Group& group) {
  const std::unordered_set<const Node*> members(group.nodes.begin(), group.nodes.end());
  std::unordered_set<const Value*> seen;
  for (Node* node : group.nodes) {
    read_uses(node, members, seen, group.entries);
    for (Value* value : node->outputs()) {
      const auto& uses = value->uses();
      if (std::any_of(uses.begin(), uses.end(),
                      [&](const auto& use) { return !inside(use.user, members); })) {
        group.exits.push_back(value);
      }
    }
  }
  std::stable_partition(group.entries.begin(), group.entries.end(),
                        [](const Value* value) { return is_stop_fusion(value->node()); });
}

}  // namespace

std::vector<Group> groups(const std::shared_ptr<Graph>& graph) {
  const Analysis analysis = analyze(graph, recorded_report(graph).options, "groups");
  std::vector<Group> groups;
  std::unordered_map<const Value*, std::size_t> ends;
  for (const RegionNode& row : analysis.region_nodes) {
    const auto found = row.data == nullptr ? ends.end() : ends.find(row.data);
    const std::size_t index = found == ends.end() ? groups.size() : found->second;
    if (index == groups.size()) groups.emplace_back();
    if (row.anchor) groups[index].anchor = row.node;
    groups[index].nodes.push_back(row.node);
    ends[row.node->output(0)] = index;
  }
  for (Group& group : groups) {
    add_between(group);
    find_borders(group);
  }
  return groups;
}

}  // namespace horizon::jit
