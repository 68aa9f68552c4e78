#include "fuse/flow.h"

#include <algorithm>

#include "fuse/planner.h"
#include "fuse/text.h"

namespace horizon::fuse {
namespace {

std::size_t at(int id) { return static_cast<std::size_t>(id); }

void check_number(int number, std::size_t count, const char* what) {
  if (number >= 0 && at(number) < count) return;
  throw PlanError(ErrorKind::kValue, std::string("fuse: 'record' must hold ") + what + " below " +
                                         std::to_string(count) + ", got " + std::to_string(number));
}

std::vector<std::string> make_paths(const Tree& tree) {
  std::vector<std::string> paths(tree.nodes.size());
  for (std::size_t i = 0; i < tree.nodes.size(); ++i) {
    const Node& parent = tree.nodes[i];
    for (std::size_t c = 0; c < parent.children.size(); ++c) {
      const int child = parent.children[c];
      // The first place names a module that stands in several.
      if (tree.nodes[at(child)].parent != static_cast<int>(i) || !paths[at(child)].empty())
        continue;
      paths[at(child)] =
          paths[i].empty() ? parent.child_names[c] : paths[i] + "." + parent.child_names[c];
    }
  }
  return paths;
}

std::string times(std::size_t count) {
  if (count == 0) return "never called";
  return "called " + (count == 1 ? "once" : std::to_string(count) + " times");
}

}  // namespace

Kind flow_kind(const Node& node) {
  return node.kind == Kind::kOther ? node.derived_from : node.kind;
}

bool is_add(const Call& call) { return call.op == "add" || call.op == "add_relu"; }

Flow::Flow(const Tree& tree, const Record& record)
    : tree_(tree),
      record_(record),
      paths_(make_paths(tree)),
      calls_of_(tree.nodes.size()),
      users_(record.values.size()),
      producer_(record.values.size(), kNoIndex),
      leaves_(record.values.size(), 0) {
  const std::size_t values = record.values.size();
  int storages = 0;
  for (const Value& v : record.values) storages = std::max(storages, v.storage + 1);
  changes_.resize(at(storages));
  for (std::size_t i = 0; i < record.calls.size(); ++i) {
    const Call& call = record.calls[i];
    const int id = static_cast<int>(i);
    check_number(call.owner, tree.nodes.size(), "modules");
    if (call.node != kNoIndex) {
      check_number(call.node, tree.nodes.size(), "modules");
      calls_of_[at(call.node)].push_back(id);
    }
    for (const int v : call.inputs) {
      check_number(v, values, "values");
      auto& users = users_[at(v)];
      if (users.empty() || users.back() != id) users.push_back(id);
    }
    for (const int v : call.outputs) {
      check_number(v, values, "values");
      if (producer_[at(v)] == kNoIndex) producer_[at(v)] = id;
    }
    for (const int s : call.changed) {
      check_number(s, changes_.size(), "storages");
      changes_[at(s)].push_back(id);
    }
  }
  for (const auto* list : {&record.results, &record.kept}) {
    for (const int v : *list) {
      check_number(v, values, "values");
      leaves_[at(v)] = 1;
    }
  }
}

std::vector<int> Flow::users(int value, bool metadata) const {
  std::vector<int> found;
  for (const int user : users_[at(value)]) {
    if (metadata || !call(user).metadata) found.push_back(user);
  }
  return found;
}

int Flow::only_user(int id, bool metadata) const {
  const Call& maker = call(id);
  if (maker.outputs.size() != 1 || leaves(maker.outputs[0])) return kNoIndex;
  const std::vector<int> found = users(maker.outputs[0], metadata);
  return found.size() == 1 ? found[0] : kNoIndex;
}

std::string Flow::describe(int id) const {
  const Call& c = call(id);
  if (c.node != kNoIndex) {
    const std::string method = c.op.empty() ? "" : "." + c.op;
    return quoted(path(c.node)) + " (" + node(c.node).class_name + method + ")";
  }
  if (c.owner == 0) return c.op + " in the model's forward";
  const Node& owner = node(c.owner);
  if (owner.children.empty()) return quoted(path(c.owner)) + " (" + owner.class_name + ")";
  return c.op + " in " + quoted(path(c.owner)) + " (" + owner.class_name + ")";
}

std::string Flow::describe_use(int id, bool metadata) const {
  const Call& maker = call(id);
  if (maker.outputs.size() != 1) return "it returns other than one new tensor";
  const int result = maker.outputs[0];
  std::vector<std::string> uses;
  for (const int user : users(result, metadata)) uses.push_back(describe(user));
  if (std::ranges::find(record_.results, result) != record_.results.end()) {
    uses.emplace_back("the model's output");
  }
  if (std::ranges::find(record_.kept, result) != record_.kept.end()) {
    uses.emplace_back("an attribute of a module that keeps it");
  }
  if (uses.empty()) return "its result is not used";
  if (uses.size() == 1) return "its result goes to " + uses[0];
  return "its result is used " + std::to_string(uses.size()) + " times: " + joined(uses, " and ");
}

std::string Flow::describe_source(int value) const {
  const int maker = producer(value);
  return maker == kNoIndex ? "an input of the model" : describe(maker);
}

std::string Flow::describe_calls(int id) const {
  const std::vector<int>& calls = calls_of(id);
  std::string text = quoted(path(id)) + " is " + times(calls.size());
  if (calls.size() < 2) return text;
  std::vector<std::string> sources;
  for (const int c : calls) {
    if (!call(c).inputs.empty()) sources.push_back(describe_source(call(c).inputs[0]));
  }
  return text + " (on " + joined(sources, " and ") + ")";
}

bool Flow::is_changed_between(int id, int first, int last) const {
  const int storage = value(id).storage;
  if (storage == kNoIndex) return false;
  const std::vector<int>& changes = changes_[at(storage)];
  const auto next = std::upper_bound(changes.begin(), changes.end(), first);
  return next != changes.end() && *next < last;
}

}  // namespace horizon::fuse
