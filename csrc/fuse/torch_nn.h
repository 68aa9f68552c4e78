#pragma once

#include <torch/nn/module.h>

#include <string>
#include <vector>

#include "fuse/planner.h"

namespace horizon {

/// What becomes of batch norms; the values are fuse::BatchNormMode's.
struct FuseOptions {
  fuse::BatchNormMode mode = fuse::BatchNormMode::kAuto;
};

/// Replaces sequences of modules by fused ones, in place.
///
/// `modules_to_fuse`: lists of dotted names ("block.conv", "layers.0"). Without an add the fused
/// module takes the slot of the first name, with one that of the FloatFunctional; placeholders take
/// the others, and code that calls them stays as it is. Members must stand in a Sequential, a
/// ModuleList, a ModuleDict or a slot of a custom module (nn/slot.h). A live batch norm keeps its
/// parameters, so that an optimizer built earlier still trains the model.
///
/// Throws ValueError (names, modes, places), TypeError (subclasses of known modules) or
/// NotImplementedError (no pattern), with the texts of the Python front end; then nothing is
/// changed. Warns of a list that is fused already.
void fuse_modules(torch::nn::Module& model,
                  const std::vector<std::vector<std::string>>& modules_to_fuse,
                  const FuseOptions& options = {});

}  // namespace horizon
