#pragma once

#include <string>
#include <vector>

#include "fuse/kinds.h"

namespace horizon::fuse {

constexpr int kNoIndex = -1;
/// Values of Node::qconfig below 1; from 1 on equal numbers mean equal settings.
constexpr int kQconfigUnset = -1;
constexpr int kQconfigNone = 0;

/// One module of a model, as the planner sees it. A module under two names is one node.
struct Node {
  std::string class_name;
  Kind kind = Kind::kOther;
  /// The known kind that a module of a class of its own derives from; kOther for all others.
  Kind derived_from = Kind::kOther;
  /// Equal numbers mean the same exact class; what custom patterns are matched with.
  int type_id = kNoIndex;

  bool training = true;
  /// A batch norm that holds a running mean and variance.
  bool has_statistics = true;
  /// Output channels of a base, features of a batch norm; kNoIndex if unknown.
  int channels = kNoIndex;

  bool has_pre_hooks = false;
  bool has_forward_hooks = false;
  /// Backward, state-dict and load hooks: a fused module cannot honour them.
  bool has_other_hooks = false;

  int qconfig = kQconfigUnset;
  int parent = kNoIndex;

  /// The group that an earlier call fused this module into, and its place there.
  int group = kNoIndex;
  int position = kNoIndex;
  /// Of a fused module: what it consists of, with a folded batch norm; else empty.
  std::vector<Kind> fused;

  /// Why this module cannot be a member, with what to do, as the front end knows it; else empty.
  std::string obstacle;
  /// A wrapper such as DataParallel: how to reach the module inside ("model.module"); else empty.
  std::string inner;

  std::vector<std::string> child_names;
  std::vector<int> children;
};

/// A model: node 0 is the root.
struct Tree {
  std::vector<Node> nodes;
  /// The names of the groups that earlier calls fused, indexed by Node::group.
  std::vector<std::vector<std::string>> groups;
};

}  // namespace horizon::fuse
