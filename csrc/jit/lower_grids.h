#pragma once

#include <ATen/core/ivalue.h>
#include <torch/csrc/jit/ir/ir.h>

#include <cstdint>
#include <optional>

#include "jit/lower.h"

namespace torch::jit {
struct Module;
}

namespace horizon::jit {

/// What a value is when the module is as it is now: a constant, or an attribute of the module.
std::optional<c10::IValue> value_now(const torch::jit::Value* value,
                                     const torch::jit::Module& module);

/// The grid that a quantizer in the graph gives a value, back through operators that keep it.
PairGrid known_grid(torch::jit::Value* value, const torch::jit::Module& module);

}  // namespace horizon::jit
