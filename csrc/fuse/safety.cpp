#include <algorithm>

#include "fuse/discover.h"
#include "fuse/text.h"

namespace horizon::fuse {
namespace {

class SafetyCheck {
 public:
  SafetyCheck(const Flow& flow, const std::vector<int>& members) : flow_(flow), members_(members) {
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (kind(i) == Kind::kFloatFunctional) add_ = i;
    }
  }

  std::string run() const {
    const std::vector<int>& calls = flow_.calls_of(members_[0]);
    for (std::size_t i = 1; i < members_.size(); ++i) {
      if (flow_.calls_of(members_[i]).size() > calls.size()) return why_called_elsewhere(i);
    }
    for (std::size_t n = 0; n < calls.size(); ++n) {
      std::string reason = why_not_at(n);
      if (!reason.empty()) return reason;
    }
    return "";
  }

 private:
  Kind kind(std::size_t i) const { return flow_kind(flow_.node(members_[i])); }
  std::string name(std::size_t i) const { return quoted(flow_.path(members_[i])); }
  std::size_t count(std::size_t i) const { return flow_.calls_of(members_[i]).size(); }

  std::string why_called_elsewhere(std::size_t i) const {
    const std::string text = flow_.describe_calls(members_[i]) + ", but its group begins with " +
                             name(0) + ", called " +
                             (count(0) == 1 ? "once" : std::to_string(count(0)) + " times");
    if (is_activation(kind(i))) {
      return text + ": give each place an activation module of its own (or use fuse_fx)";
    }
    return text + ": give the other calls a module of their own";
  }

  // The n-th call of the base, and what follows it.
  std::string why_not_at(std::size_t n) const {
    const int first = flow_.calls_of(members_[0])[n];
    const Call& base = flow_.call(first);
    if (base.outputs.size() != 1) return name(0) + ": " + flow_.describe_use(first, false);
    int current = first;
    for (std::size_t i = 1; i < members_.size(); ++i) {
      // What reads the shape of a result that its add has still to compute is refused at run time.
      const bool metadata = i <= add_ && add_ < members_.size();
      const int next = flow_.only_user(current, metadata);
      if (next == kNoIndex || flow_.call(next).node != members_[i]) {
        return why_not_followed(i, n, current, metadata);
      }
      std::string reason = why_not_joined(i, n, first, current, next);
      if (!reason.empty()) return reason;
      current = next;
    }
    return "";
  }

  std::string why_not_followed(std::size_t i, std::size_t n, int current, bool metadata) const {
    const std::size_t calls = count(0);
    std::string text = name(i - 1);
    if (calls > 1) {
      text += " is called " + std::to_string(calls) + " times, and at call " +
              std::to_string(n + 1) + " ";
      return text + flow_.describe_use(current, metadata) + " instead of to " + name(i) +
             " alone: give each use a module of its own";
    }
    const int next = flow_.only_user(current, metadata);
    text += ": " + flow_.describe_use(current, metadata);
    if (next != kNoIndex) return text + ", not to " + name(i);
    return text + "; a fused group hands on only its last result, so " + name(i) +
           " must be its only user";
  }

  std::string why_not_joined(std::size_t i, std::size_t n, int first, int current, int next) const {
    const Call& call = flow_.call(next);
    if (i == add_) {
      if (!is_add(call)) {
        return name(i) + " is used by its method " + call.op + "; only add and add_relu fuse";
      }
      const Call& base = flow_.call(first);
      for (const int input : base.inputs) {
        if (flow_.is_changed_between(input, first, next)) {
          return "the input of " + name(0) + " is changed in place before " + name(i) +
                 ", which would compute from it: use the out-of-place op there";
        }
      }
      return "";
    }
    if (!is_batch_norm(kind(i))) return "";
    // Running statistics depend on the order of calls, which a group takes from its base.
    if (flow_.calls_of(members_[i])[n] != next) {
      return name(i) + " is called in another order than " + name(0);
    }
    const int dimensions = flow_.value(flow_.call(current).outputs[0]).dimensions;
    if (kind(0) == Kind::kLinear && dimensions != kNoIndex && dimensions != 2) {
      return name(0) + " is called on an input of " + std::to_string(dimensions) +
             " dimensions; a linear layer fuses with a batch norm for 2-D input only";
    }
    return "";
  }

  const Flow& flow_;
  const std::vector<int>& members_;
  std::size_t add_ = static_cast<std::size_t>(-1);
};

}  // namespace

std::string why_unsafe(const Flow& flow, const std::vector<int>& members) {
  return SafetyCheck(flow, members).run();
}

void check_groups(const Tree& tree, const Record& record, const std::vector<Group>& groups,
                  std::vector<std::string>& warnings) {
  const Flow flow(tree, record);
  for (const Group& group : groups) {
    const auto is_called = [&](int node) { return !flow.calls_of(node).empty(); };
    if (std::ranges::none_of(group.members, is_called)) {
      warnings.push_back("fuse_modules: " + list_text(group.names) +
                         " are never called with these example_inputs, so nothing is known about "
                         "their calls: pass inputs that reach them");
      continue;
    }
    const std::string reason = why_unsafe(flow, group.members);
    if (reason.empty()) continue;
    throw PlanError(ErrorKind::kValue, "fuse_modules: " + list_text(group.names) +
                                           " cannot be fused, because the model does not always "
                                           "call them one after another: " +
                                           reason);
  }
}

}  // namespace horizon::fuse
