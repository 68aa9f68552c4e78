#include "fuse/checks.h"

#include <algorithm>

#include "fuse/text.h"

namespace horizon::fuse {
namespace {

class GroupCheck {
 public:
  GroupCheck(const Tree& tree, const Options& options, Group& group)
      : tree_(tree), options_(options), group_(group) {}

  void run(std::vector<std::string>& warnings) {
    if (!match_custom()) {
      refuse_subclasses();
      match_table();
      refuse_obstacles();
      check_channels();
    }
    check_modes();
    check_hooks(warnings);
    agree_on_qconfig();
  }

 private:
  const Node& member(std::size_t i) const {
    return tree_.nodes[static_cast<std::size_t>(group_.members[i])];
  }
  std::size_t size() const { return group_.members.size(); }
  std::string name(std::size_t i) const { return quoted(group_.names[i]); }

  [[noreturn]] void refuse(const std::string& text, ErrorKind kind = ErrorKind::kValue) const {
    throw PlanError(kind, "fuse_modules: " + text);
  }

  bool match_custom() {
    for (std::size_t p = 0; p < options_.custom_patterns.size(); ++p) {
      const auto& pattern = options_.custom_patterns[p];
      if (pattern.size() != size()) continue;
      std::size_t i = 0;
      while (i < size() && member(i).type_id == pattern[i]) ++i;
      if (i < size()) continue;
      group_.custom = static_cast<int>(p);
      set_slot();
      return true;
    }
    return false;
  }

  void refuse_subclasses() const {
    for (std::size_t i = 0; i < size(); ++i) {
      if (member(i).kind != Kind::kOther) continue;
      if (!member(i).obstacle.empty()) refuse(name(i) + " " + member(i).obstacle);
      if (member(i).derived_from == Kind::kOther) continue;
      const std::string& type = member(i).class_name;
      refuse(name(i) + " is a " + type + ", a subclass of " +
                 std::string(kind_name(member(i).derived_from)) +
                 ": fuse_modules takes exact types only, because a " + type +
                 " may compute something else; leave it out, or give its tuple a fuser in "
                 "additional_fuser_method_mapping",
             ErrorKind::kType);
    }
  }

  void match_table() {
    std::vector<Kind> kinds;
    for (std::size_t i = 0; i < size(); ++i) kinds.push_back(member(i).kind);
    if (const Pattern* pattern = match(kinds)) {
      group_.variant = pattern->variant;
      set_slot();
      return;
    }
    std::vector<std::string> types;
    for (std::size_t i = 0; i < size(); ++i) types.push_back(member(i).class_name);
    std::string text =
        list_text(group_.names) + " are (" + joined(types) + "), a sequence that cannot be fused: ";
    const std::size_t length = matched_prefix(kinds);
    std::vector<std::string> options;
    for (const Kind kind : continuations(kinds, length)) options.emplace_back(kind_name(kind));
    if (length == 0) {
      text += "a group begins with " + joined(options, " or ") + ", but " + name(0) + " is a " +
              types[0];
    } else {
      types.resize(length);
      text += options.empty()
                  ? "nothing can follow (" + joined(types) + ")"
                  : "what can follow (" + joined(types) + ") is " + joined(options, " or ") +
                        ", but " + name(length) + " is a " + member(length).class_name;
    }
    refuse(text, ErrorKind::kNotImplemented);
  }

  // Only the FloatFunctional sees both operands of an add.
  void set_slot() {
    for (std::size_t i = 0; i < size(); ++i) {
      if (member(i).kind == Kind::kFloatFunctional) group_.slot = i;
    }
  }

  void refuse_obstacles() const {
    for (std::size_t i = 0; i < size(); ++i) {
      if (!member(i).obstacle.empty()) refuse(name(i) + " " + member(i).obstacle);
    }
  }

  void check_channels() const {
    if (!group_.variant.batch_norm) return;
    const int given = member(0).channels;
    const int wanted = member(1).channels;
    if (given == wanted || given == kNoIndex || wanted == kNoIndex) return;
    refuse(name(1) + " must normalize the " + std::to_string(given) + " channels of " + name(0) +
           ", got " + std::to_string(wanted));
  }

  void check_modes() {
    std::size_t batch_norm = size();
    std::size_t training = 0;
    for (std::size_t i = 0; i < size(); ++i) {
      if (is_batch_norm(member(i).kind)) batch_norm = i;
      training += member(i).training ? 1 : 0;
    }
    const bool has_batch_norm = batch_norm < size();
    const bool frozen = has_batch_norm && !member(batch_norm).training && training + 1 == size();
    if (training != 0 && training != size() && !frozen) {
      std::vector<std::string> modes;
      for (std::size_t i = 0; i < size(); ++i) {
        modes.push_back(group_.names[i] + (member(i).training ? ": train" : ": eval"));
      }
      refuse(
          "the members of a group must be in one mode, or in train mode with only the batch norm "
          "in eval (frozen), got " +
          joined(modes) + ". Call train() or eval() on the model first");
    }
    if (group_.custom != kNoIndex || !has_batch_norm) return;
    if (options_.mode == BatchNormMode::kFuse ||
        (options_.mode == BatchNormMode::kAuto && training == 0)) {
      group_.action = Action::kFold;
    } else {
      group_.action = frozen ? Action::kFrozen : Action::kLive;
    }
    if (group_.action != Action::kLive && !member(batch_norm).has_statistics) {
      refuse(name(batch_norm) + " must have running statistics to be " +
             (group_.action == Action::kFold ? "folded" : "frozen") +
             ", but it was built with track_running_stats=False (or lost them); it can only stay "
             "live, in train mode");
    }
  }

  void check_hooks(std::vector<std::string>& warnings) const {
    std::vector<std::string> found;
    for (std::size_t i = 0; i < size(); ++i) {
      std::vector<std::string> kinds;
      if (member(i).has_pre_hooks && i > 0) kinds.emplace_back("forward pre-hook");
      if (member(i).has_forward_hooks && i + 1 < size()) kinds.emplace_back("forward hook");
      if (member(i).has_other_hooks) kinds.emplace_back("backward or state-dict hook");
      if (!kinds.empty()) found.push_back(name(i) + " (" + joined(kinds) + ")");
    }
    if (found.empty()) return;
    const std::string text = "fuse_modules: hooks on inner members of " + list_text(group_.names) +
                             " cannot be honoured: " + joined(found);
    if (!options_.allow_inner_hooks) {
      throw PlanError(ErrorKind::kValue,
                      text + ". Only pre-hooks of " + name(0) + " and forward hooks of " +
                          name(size() - 1) +
                          " move to the fused module: remove the others, or pass "
                          "allow_inner_hooks=True to drop them");
    }
    warnings.push_back(text + "; they are dropped (allow_inner_hooks=True)");
  }

  // The setting a member without one of its own inherits, as far as it is known now.
  int effective_qconfig(std::size_t i) const {
    for (const Node* node = &member(i);;
         node = &tree_.nodes[static_cast<std::size_t>(node->parent)]) {
      if (node->qconfig != kQconfigUnset || node->parent == kNoIndex) return node->qconfig;
    }
  }

  // A member without a setting has no objection to another's, except to being left float.
  void agree_on_qconfig() {
    bool agree = true;
    for (std::size_t i = 0; i < size(); ++i) {
      const int own = member(i).qconfig;
      if (own == kQconfigUnset) continue;
      if (group_.qconfig == kQconfigUnset) group_.qconfig = own;
      agree = agree && own == group_.qconfig;
    }
    if (group_.qconfig == kQconfigNone) {
      for (std::size_t i = 0; i < size(); ++i)
        agree = agree && effective_qconfig(i) == kQconfigNone;
    }
    if (agree) return;
    std::vector<std::string> settings;
    for (std::size_t i = 0; i < size(); ++i) {
      const int own = member(i).qconfig;
      settings.push_back(group_.names[i] + ": " +
                         (own == kQconfigUnset  ? "inherited"
                          : own == kQconfigNone ? "None (left float)"
                                                : "setting " + std::to_string(own)));
    }
    refuse("the members of " + list_text(group_.names) + " must agree on their qconfig, got " +
           joined(settings) +
           ". Set the same qconfig on all of them, or set it on the fused module");
  }

  const Tree& tree_;
  const Options& options_;
  Group& group_;
};

}  // namespace

void complete_group(const Tree& tree, const Options& options, Group& group,
                    std::vector<std::string>& warnings) {
  GroupCheck(tree, options, group).run(warnings);
}

}  // namespace horizon::fuse
