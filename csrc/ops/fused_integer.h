#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "ops/fused.h"

namespace horizon::ops {

/// The output of a whole group in the arithmetic of the converted model, on any device. `scale` and
/// the stored `zero_point` are those of the output, or neither is given.
at::Tensor fused_integer(const FusedArgs& args, bool channels_last,
                         const std::optional<at::Tensor>& scale,
                         const std::optional<at::Tensor>& zero_point);

}  // namespace horizon::ops
