#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <unordered_map>
#include <vector>

#include "fuse/tree.h"
#include "nn/pending.h"
#include "nn/places.h"

namespace horizon::fuse {

/// A torch::nn model as the planner sees it; reads only.
struct ModuleTree {
  explicit ModuleTree(torch::nn::Module& model);

  Tree tree;
  /// The module of each node.
  std::vector<torch::nn::Module*> modules;
  /// For each node, the places that hold its module.
  std::vector<std::vector<nn::Place>> slots;

  /// Where a member of a group is replaced: all its places; an activation's own, and those beside
  /// another place of the group's base.
  std::vector<nn::Place> places_of(int node, int base) const;

  /// Throws PlanError for a member that also stands outside its group, where it would change as
  /// well.
  void check_places(const std::vector<int>& members, const std::vector<std::string>& names) const;

 private:
  Node make_node(const torch::nn::Module& module, int parent);
  int group_id(const std::shared_ptr<const nn::FusedGroup>& group);

  std::unordered_map<const nn::FusedGroup*, int> group_ids_;
};

}  // namespace horizon::fuse
