#include "fuse/planner.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "fuse/checks.h"
#include "fuse/resolve.h"
#include "fuse/text.h"

namespace horizon::fuse {
namespace {

[[noreturn]] void refuse(const std::string& text) {
  throw PlanError(ErrorKind::kValue, "fuse_modules: " + text);
}

class Planner {
 public:
  Planner(const Tree& tree, const Options& options)
      : tree_(tree), options_(options), resolver_(tree) {}

  void add(const std::vector<std::string>& names) {
    Group group = resolve(names);
    if (is_repeated(group)) {
      plan_.warnings.push_back("fuse_modules: " + list_text(names) +
                               " is fused already: this list changes nothing");
      return;
    }
    refuse_consumed(group);
    if (options_.match_patterns) complete_group(tree_, options_, group, plan_.warnings);
    for (const int member : group.members) consumer_[member] = plan_.groups.size();
    plan_.groups.push_back(std::move(group));
  }

  Plan take() { return std::move(plan_); }

 private:
  const Node& node(int id) const { return tree_.nodes[static_cast<std::size_t>(id)]; }

  Group resolve(const std::vector<std::string>& names) {
    if (names.empty()) refuse("each list must name two or more modules, got an empty list");
    if (names.size() == 1) {
      refuse("each list must name two or more modules, got only " + list_text(names));
    }
    Group group;
    group.names = names;
    std::unordered_map<int, std::size_t> seen;
    for (std::size_t i = 0; i < names.size(); ++i) {
      const int id = resolver_.resolve(names[i]);
      const auto [first, inserted] = seen.emplace(id, i);
      if (!inserted) {
        const std::string& other = names[first->second];
        refuse(list_text(names) + " must name different modules, but " +
               (other == names[i] ? quoted(other) + " stands there twice"
                                  : quoted(other) + " and " + quoted(names[i]) + " are the same"));
      }
      group.members.push_back(id);
    }
    return group;
  }

  // The very list that an earlier call, or an earlier list of this call, has fused.
  bool is_repeated(const Group& group) const {
    const auto consumer = consumer_.find(group.members.front());
    if (consumer != consumer_.end()) {
      return plan_.groups[consumer->second].members == group.members;
    }
    const int fused = node(group.members.front()).group;
    if (fused == kNoIndex) return false;
    if (tree_.groups[static_cast<std::size_t>(fused)].size() != group.members.size()) return false;
    for (std::size_t i = 0; i < group.members.size(); ++i) {
      const Node& member = node(group.members[i]);
      if (member.group != fused || member.position != static_cast<int>(i)) return false;
    }
    return true;
  }

  void refuse_consumed(const Group& group) const {
    for (std::size_t i = 0; i < group.members.size(); ++i) {
      const std::string start = quoted(group.names[i]) + " of " + list_text(group.names);
      const auto consumer = consumer_.find(group.members[i]);
      if (consumer != consumer_.end()) {
        refuse(start + " was consumed by an earlier list of this call, " +
               list_text(plan_.groups[consumer->second].names) +
               ": a module can be fused once, so give each group its own");
      }
      const int fused = node(group.members[i]).group;
      if (fused != kNoIndex) {
        refuse(start + " was consumed by an earlier call, as part of " +
               list_text(tree_.groups[static_cast<std::size_t>(fused)]) +
               ": name all members of a group in one list");
      }
    }
  }

  const Tree& tree_;
  const Options& options_;
  Resolver resolver_;
  std::unordered_map<int, std::size_t> consumer_;
  Plan plan_;
};

}  // namespace

Plan plan(const Tree& tree, const std::vector<std::vector<std::string>>& lists,
          const Options& options) {
  if (lists.empty()) refuse("'modules_to_fuse' must hold at least one list of names, got none");
  Planner planner(tree, options);
  for (const auto& names : lists) planner.add(names);
  return planner.take();
}

}  // namespace horizon::fuse
