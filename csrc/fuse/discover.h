#pragma once

#include <string>
#include <vector>

#include "fuse/flow.h"
#include "fuse/planner.h"

namespace horizon::fuse {

/// A module of the pattern table that is in no group.
struct LeftAlone {
  int node = kNoIndex;
  std::string name;
  /// Why, and what would change it.
  std::string reason;
  /// Something fusable stands beside it; false for, say, the last layer of a network.
  bool blocked = false;
};

struct Discovery {
  /// In the order of their first call; complete, as `plan` returns them.
  std::vector<Group> groups;
  /// For each group, why it does not go on although something fusable follows; else empty.
  std::vector<std::string> hints;
  /// In the order of the tree.
  std::vector<LeftAlone> left;
  std::vector<std::string> warnings;
};

/// Finds every group that is safe to fuse: at each call of its base the same members follow, in
/// order, each called nowhere else; no value between them is used twice or leaves the model, and
/// nothing changes the base's input between it and an add.
///
/// Of two bases whose results meet in one add, the one called last takes it. The longest pattern
/// wins; a group that the planner refuses is left alone with its reason. Linear in tree and record.
/// Throws PlanError only for a record that does not fit the tree.
Discovery find_groups(const Tree& tree, const Record& record, const Options& options);

/// Why it would be unsafe to fuse `members`, in the words of find_groups; empty if it is safe.
std::string why_unsafe(const Flow& flow, const std::vector<int>& members);

/// Refuses the first group that is unsafe, naming it and the callers. Groups that are never called
/// are warned about.
///
/// Throws PlanError.
void check_groups(const Tree& tree, const Record& record, const std::vector<Group>& groups,
                  std::vector<std::string>& warnings);

}  // namespace horizon::fuse
