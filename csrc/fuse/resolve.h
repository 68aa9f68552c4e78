#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "fuse/tree.h"

namespace horizon::fuse {

/// Finds nodes by dotted path. Each parent's children are indexed once, so that all look-ups
/// together are linear in names and children.
class Resolver {
 public:
  explicit Resolver(const Tree& tree) : tree_(tree) {}

  /// The node at `path`. Throws PlanError naming the parent and its children, or a wrapper on the
  /// way and what to pass instead.
  int resolve(const std::string& path);

 private:
  using Index = std::unordered_map<std::string_view, int>;

  const Index& children_of(int node);
  void refuse_wrapper(int node, const std::string& path) const;
  [[noreturn]] void refuse_name(const std::string& path, const std::string& parent_path, int parent,
                                const std::string& name) const;

  const Tree& tree_;
  std::unordered_map<int, Index> indices_;
};

}  // namespace horizon::fuse
