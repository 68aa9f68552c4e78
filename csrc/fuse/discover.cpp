#include "fuse/discover.h"

#include <algorithm>

#include "fuse/checks.h"
#include "fuse/text.h"

namespace horizon::fuse {
namespace {

constexpr std::size_t kLongestPattern = 4;

bool is_fusable(Kind kind) { return kind != Kind::kOther; }

// What a function does that a module in a group could do; kOther for all else.
Kind kind_of_op(const std::string& op) {
  if (op == "+" || op == "+=" || op == "add" || op == "add_") return Kind::kFloatFunctional;
  if (op == "relu" || op == "relu_") return Kind::kReLU;
  if (op == "relu6" || op == "hardtanh" || op == "hardtanh_") return Kind::kReLU6;
  if (op == "batch_norm") return Kind::kBatchNorm2d;
  return Kind::kOther;
}

const char* remedy_for(Kind kind) {
  switch (kind) {
    case Kind::kFloatFunctional:
      return "write it with a FloatFunctional, self.add.add(x, y), or use fuse_fx";
    case Kind::kReLU:
      return "use an nn.ReLU module, or fuse_fx";
    case Kind::kReLU6:
      return "use an nn.ReLU6 module, or fuse_fx";
    default:
      return "use a batch norm module";
  }
}

class Finder {
 public:
  Finder(const Tree& tree, const Record& record, const Options& options)
      : tree_(tree),
        options_(options),
        flow_(tree, record),
        taken_(tree.nodes.size(), 0),
        reasons_(tree.nodes.size()),
        blocked_(tree.nodes.size(), 0) {
    for (const auto& pattern : options.custom_patterns) {
      longest_ = std::max(longest_, pattern.size());
    }
  }

  Discovery run() {
    for (const int base : bases_by_last_call()) try_base(base);
    // Found from the last call to the first.
    std::ranges::reverse(found_.groups);
    std::ranges::reverse(found_.hints);
    for (std::size_t i = 1; i < tree_.nodes.size(); ++i) {
      if (!tree_.nodes[i].fused.empty()) explain_fused(static_cast<int>(i));
    }
    collect_left();
    return std::move(found_);
  }

 private:
  static std::size_t at(int id) { return static_cast<std::size_t>(id); }
  const Node& node(int id) const { return flow_.node(id); }
  std::string name(int id) const { return quoted(flow_.path(id)); }

  bool begins_custom(int id) const {
    return std::ranges::any_of(options_.custom_patterns, [&](const std::vector<int>& pattern) {
      return !pattern.empty() && pattern[0] == node(id).type_id;
    });
  }

  // Of two bases that meet in one add, the one called last comes first here and takes it.
  std::vector<int> bases_by_last_call() const {
    std::vector<int> bases;
    for (std::size_t i = 1; i < tree_.nodes.size(); ++i) {
      const int id = static_cast<int>(i);
      if (node(id).group != kNoIndex || flow_.calls_of(id).empty()) continue;
      if (is_base(flow_kind(node(id))) || begins_custom(id)) bases.push_back(id);
    }
    std::ranges::sort(bases, std::ranges::greater{},
                      [&](int id) { return flow_.calls_of(id).front(); });
    return bases;
  }

  // The modules that follow the first call of `base`, as far as one result has one user.
  std::vector<int> chain_of(int base) const {
    std::vector<int> chain{base};
    int current = flow_.calls_of(base).front();
    while (chain.size() < longest_) {
      const int next = flow_.only_user(current, false);
      if (next == kNoIndex) break;
      const Call& call = flow_.call(next);
      if (call.node == kNoIndex || node(call.node).group != kNoIndex ||
          std::ranges::find(chain, call.node) != chain.end()) {
        break;
      }
      if (node(call.node).kind == Kind::kFloatFunctional && !is_add(call)) break;
      chain.push_back(call.node);
      current = next;
    }
    return chain;
  }

  bool matches(const std::vector<int>& members) const {
    const auto equals = [&](const std::vector<int>& pattern) {
      return std::ranges::equal(pattern, members, {}, {}, [&](int id) { return node(id).type_id; });
    };
    if (std::ranges::any_of(options_.custom_patterns, equals)) return true;
    std::vector<Kind> kinds;
    for (const int id : members) kinds.push_back(flow_kind(node(id)));
    return match(kinds) != nullptr;
  }

  void try_base(int base) {
    for (std::vector<int> members = chain_of(base); members.size() >= 2; members.pop_back()) {
      if (!matches(members)) continue;
      const std::string reason = why_not(members);
      if (reason.empty()) {
        if (add_group(members)) found_.hints.back() = explain(members);
        return;
      }
      set_reason(members.back(), reason);
      set_reason(base, reason);
    }
    const std::string hint = explain({base});
    if (!hint.empty()) set_reason(base, hint);
    if (!reasons_[at(base)].empty()) return;
    reasons_[at(base)] =
        flow_.describe_use(flow_.calls_of(base).front(), false) + ": nothing follows that fuses";
  }

  std::string why_not(const std::vector<int>& members) const {
    for (const int id : members) {
      if (taken_[at(id)]) {
        return name(id) + " is fused with " + name(taken_[at(id)]) +
               ", which is called later and takes the add";
      }
      for (int above = node(id).parent; above != kNoIndex; above = node(above).parent) {
        if (node(above).inner.empty()) continue;
        return name(above) + " is wrapped in " + node(above).class_name +
               ", and names do not reach through it: fuse before wrapping, or fuse model." +
               flow_.path(above) + "." + node(above).inner + " by itself";
      }
    }
    return why_unsafe(flow_, members);
  }

  // Asks the planner; a refusal becomes the reason of every member.
  bool add_group(const std::vector<int>& members) {
    Group group;
    group.members = members;
    for (const int id : members) group.names.push_back(flow_.path(id));
    try {
      complete_group(tree_, options_, group, found_.warnings);
    } catch (const PlanError& error) {
      constexpr std::string_view kPrefix = "fuse_modules: ";
      std::string text = error.what();
      if (text.starts_with(kPrefix)) text.erase(0, kPrefix.size());
      for (const int id : members) set_reason(id, text);
      return false;
    }
    for (const int id : members) taken_[at(id)] = members[0];
    found_.groups.push_back(std::move(group));
    found_.hints.emplace_back();
    return true;
  }

  void set_reason(int id, const std::string& text) {
    if (reasons_[at(id)].empty()) reasons_[at(id)] = text;
    blocked_[at(id)] = 1;
  }

  // Whether a group of `kinds` could take over `call`, which uses its result.
  bool goes_on(const std::vector<Kind>& kinds, const Call& call) const {
    const bool is_op = call.node == kNoIndex;
    if (!is_op && node(call.node).group != kNoIndex) return false;
    const Kind kind = is_op ? kind_of_op(call.op) : flow_kind(node(call.node));
    if (kind == Kind::kFloatFunctional && !is_op && !is_add(call)) return false;
    return std::ranges::any_of(continuations(kinds, kinds.size()), [&](Kind next) {
      return next == kind || (is_batch_norm(next) && is_batch_norm(kind));
    });
  }

  // Why `members` do not go on although something fusable follows; empty if nothing does.
  std::string explain(const std::vector<int>& members) {
    std::vector<Kind> kinds;
    for (const int id : members) kinds.push_back(flow_kind(node(id)));
    int current = flow_.calls_of(members[0]).front();
    for (std::size_t i = 1; i < members.size(); ++i) current = flow_.only_user(current, false);
    if (flow_.call(current).outputs.size() != 1) return "";
    const std::string use = flow_.describe_use(current, false);
    const std::string of = name(members.back()) + ": ";
    const bool alone = flow_.only_user(current, false) != kNoIndex;
    std::string text;
    for (const int user : flow_.users(flow_.call(current).outputs[0], false)) {
      const Call& call = flow_.call(user);
      const bool is_op = call.node == kNoIndex;
      if ((!is_op && alone) || !goes_on(kinds, call)) continue;
      text = use + (alone ? std::string(": ") + remedy_for(kind_of_op(call.op))
                          : ", so no group can go on with it: it must have one user");
      if (!is_op) set_reason(call.node, of + text);
    }
    return members.size() == 1 || text.empty() ? text : of + text;
  }

  // Says what could have been in a group that an earlier call fused; `id` is the fused module.
  void explain_fused(int id) {
    const std::vector<Kind>& kinds = node(id).fused;
    const auto is_last = [&](const Node& member) {
      return member.group == node(id).group &&
             member.position + 1 == static_cast<int>(kinds.size());
    };
    const auto found = std::ranges::find_if(tree_.nodes, is_last);
    if (found == tree_.nodes.end()) return;
    const int last = static_cast<int>(found - tree_.nodes.begin());
    if (flow_.calls_of(last).empty()) return;
    const std::vector<int>& results = flow_.call(flow_.calls_of(last).front()).outputs;
    if (results.size() != 1 || flow_.leaves(results[0])) return;
    // An identity that stands for a member hands on the very same value.
    std::vector<int> users = flow_.users(results[0], false);
    std::erase_if(users, [&](int user) {
      const int member = flow_.call(user).node;
      return member != kNoIndex && node(member).group == node(id).group;
    });
    if (users.size() != 1 || !goes_on(kinds, flow_.call(users[0]))) return;
    const Call& call = flow_.call(users[0]);
    const std::string text = name(last) + ": its result goes to " + flow_.describe(users[0]);
    if (call.node != kNoIndex) {
      set_reason(call.node, text + why_not_in(last, call.node));
    } else {
      const std::string remedy = remedy_for(kind_of_op(call.op));
      found_.left.push_back({id, flow_.path(id), text + ": " + remedy, true});
    }
  }

  // Why a fused group goes without the module that alone follows it.
  std::string why_not_in(int last, int next) const {
    if (flow_.calls_of(next).size() != flow_.calls_of(last).size()) {
      return ", but " + flow_.describe_calls(next) +
             ": give each place a module of its own (or use fuse_fx)";
    }
    return ", and was fused without it: fuse " + list_text(tree_.groups[at(node(last).group)]) +
           " and " + name(next) + " in one list, from the float model";
  }

  void collect_left() {
    for (std::size_t i = 1; i < tree_.nodes.size(); ++i) {
      const int id = static_cast<int>(i);
      if (taken_[i] != 0 || !is_fusable(flow_kind(node(id))) || is_inside_fused(id)) continue;
      LeftAlone left{id, flow_.path(id), reason_of(id), false};
      left.blocked = blocked_[i] != 0;
      if (!left.reason.empty()) found_.left.push_back(std::move(left));
    }
  }

  bool is_inside_fused(int id) const {
    for (; id != kNoIndex; id = node(id).parent) {
      if (node(id).group != kNoIndex) return true;
    }
    return false;
  }

  // Empty for a FloatFunctional that serves other methods.
  std::string reason_of(int id) {
    if (!reasons_[at(id)].empty()) return reasons_[at(id)];
    const std::vector<int>& calls = flow_.calls_of(id);
    if (calls.empty()) return "it is never called with these example inputs";
    const Kind kind = flow_kind(node(id));
    if (kind == Kind::kFloatFunctional &&
        std::ranges::none_of(calls, [&](int c) { return is_add(flow_.call(c)); })) {
      return "";
    }
    if (calls.size() > 1 && !is_base(kind)) {
      return flow_.describe_calls(id) + ", and no group takes all of these calls";
    }
    std::vector<std::string> sources;
    for (const int value : flow_.call(calls.front()).inputs) {
      sources.push_back(flow_.describe_source(value));
    }
    return "it follows " + joined(sources, " and ") +
           ", which is in no group that it could join: groups begin with a convolution or a "
           "linear layer";
  }

  const Tree& tree_;
  const Options& options_;
  Flow flow_;
  Discovery found_;
  std::size_t longest_ = kLongestPattern;
  // The base of the group that has a module; 0, the model itself, for none.
  std::vector<int> taken_;
  std::vector<std::string> reasons_;
  std::vector<char> blocked_;
};

}  // namespace

Discovery find_groups(const Tree& tree, const Record& record, const Options& options) {
  return Finder(tree, record, options).run();
}

}  // namespace horizon::fuse
