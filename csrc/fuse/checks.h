#pragma once

#include <string>
#include <vector>

#include "fuse/planner.h"

namespace horizon::fuse {

/// Decides what a group of resolved members becomes: pattern, slot, batch norm, qconfig.
///
/// Throws PlanError for members that cannot be fused; appends to `warnings`.
void complete_group(const Tree& tree, const Options& options, Group& group,
                    std::vector<std::string>& warnings);

}  // namespace horizon::fuse
