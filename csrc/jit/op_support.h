#pragma once

#include <string_view>
#include <vector>

namespace horizon::jit {

/// What the partition pass does with an operator (docs/partition.md).
enum class Role {
  kOther,       ///< ends a region
  kAnchor,      ///< starts one: convolutions, linear
  kFollower,    ///< stays in the region of its data
  kArithmetic,  ///< add and mul: a follower with a constant, a join of two tensors
  kMetadata,    ///< reads no elements
  kAnnotation,
};

/// One operator of the table that the planner, Python and the graph passes share.
struct OpSupport {
  const char* name;         ///< qualified, without overload and without a trailing underscore
  Role role;                ///< where its further conditions hold
  const char* relay;        ///< its name in Relay, or nullptr for the operator's own
  bool keeps_grid = false;  ///< its result takes only values of its data, zero among them
};

const std::vector<OpSupport>& op_support();

/// The row of an operator, of its in-place form as well ("aten::relu_"); nullptr without one.
const OpSupport* find_op_support(std::string_view name);

}  // namespace horizon::jit
