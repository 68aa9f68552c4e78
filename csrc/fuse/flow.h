#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "fuse/record.h"

namespace horizon::fuse {

/// The kind of a module to whoever follows values: exact types, and subclasses by what they
/// derive from (which the planner refuses later, by name).
Kind flow_kind(const Node& node);

/// Whether a call of a FloatFunctional is one that a group can take over.
bool is_add(const Call& call);

/// A record indexed by values and modules, and how it is told to the user. Linear in the record.
class Flow {
 public:
  /// Throws PlanError if the record's numbers do not fit the tree.
  Flow(const Tree& tree, const Record& record);

  const Node& node(int id) const { return tree_.nodes[static_cast<std::size_t>(id)]; }
  const Call& call(int id) const { return record_.calls[static_cast<std::size_t>(id)]; }
  const Value& value(int id) const { return record_.values[static_cast<std::size_t>(id)]; }
  /// The dotted path of a module; empty for the model itself.
  const std::string& path(int node) const { return paths_[static_cast<std::size_t>(node)]; }
  /// The calls of a module, in order.
  const std::vector<int>& calls_of(int node) const {
    return calls_of_[static_cast<std::size_t>(node)];
  }
  /// The calls that use a value, each once, in order; `metadata` includes reads of shape and dtype.
  std::vector<int> users(int value, bool metadata) const;

  /// The call that alone uses the result of `call`; kNoIndex if there are none or several, or the
  /// result leaves the model.
  int only_user(int call, bool metadata) const;
  /// Why only_user finds nothing, or what the user is: "its result is used 2 times: …".
  std::string describe_use(int call, bool metadata) const;
  /// "'bn' (BatchNorm2d)", "+ in 'block'".
  std::string describe(int call) const;
  /// "'bn' is called 2 times, on the results of 'conv' (Conv2d) and 'pool' (MaxPool2d)".
  std::string describe_calls(int node) const;
  /// Where a value comes from: as describe, or "an input of the model".
  std::string describe_source(int value) const;
  /// The call that made a value; kNoIndex for inputs of the model.
  int producer(int value) const { return producer_[static_cast<std::size_t>(value)]; }
  /// Whether the memory of `value` changes in place between two calls.
  bool is_changed_between(int value, int first, int last) const;

  /// Whether a value is returned by the model, or kept in an attribute.
  bool leaves(int value) const { return leaves_[static_cast<std::size_t>(value)] != 0; }

 private:
  const Tree& tree_;
  const Record& record_;
  std::vector<std::string> paths_;
  std::vector<std::vector<int>> calls_of_;
  std::vector<std::vector<int>> users_;
  std::vector<std::vector<int>> changes_;
  std::vector<int> producer_;
  std::vector<char> leaves_;
};

}  // namespace horizon::fuse
