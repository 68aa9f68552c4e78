#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include "fuse/patterns.h"
#include "fuse/tree.h"

namespace horizon::fuse {

enum class ErrorKind { kValue, kType, kNotImplemented };

/// A refusal; `what()` is the final text for the user.
class PlanError : public std::runtime_error {
 public:
  PlanError(ErrorKind kind, const std::string& text) : std::runtime_error(text), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

/// What happens to the batch norm by default: kAuto folds members in eval mode and keeps the batch
/// norm of members in train mode; kFuse always folds; kKeep never does.
enum class BatchNormMode { kAuto, kFuse, kKeep };

struct Options {
  BatchNormMode mode = BatchNormMode::kAuto;
  /// Drop the hooks of inner members with a warning instead of refusing them.
  bool allow_inner_hooks = false;
  /// False: only names are checked, for a caller that fuses by rules of its own.
  bool match_patterns = true;
  /// Sequences of Node::type_id that are accepted besides the table, and before it.
  std::vector<std::vector<int>> custom_patterns;
};

/// What becomes of a group's batch norm: none there, live, live with fixed statistics, or folded.
enum class Action { kNoBatchNorm, kLive, kFrozen, kFold };

/// One list of names, resolved.
struct Group {
  std::vector<int> members;
  std::vector<std::string> names;
  /// Index into Options::custom_patterns, or kNoIndex: then `variant` and `action` say what to
  /// build.
  int custom = kNoIndex;
  Variant variant;
  Action action = Action::kNoBatchNorm;
  /// Which member's slot takes the fused module.
  std::size_t slot = 0;
  /// The setting that the members agree on.
  int qconfig = kQconfigUnset;
};

struct Plan {
  std::vector<Group> groups;
  std::vector<std::string> warnings;
};

/// Resolves and checks every list; linear in the number of modules and names.
///
/// Names are dotted paths of child names. Throws PlanError; never changes anything.
Plan plan(const Tree& tree, const std::vector<std::vector<std::string>>& lists,
          const Options& options);

}  // namespace horizon::fuse
