#pragma once

#include <ATen/core/ivalue.h>
#include <torch/csrc/jit/ir/ir.h>

#include <cstdint>
#include <optional>
#include <string>

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

/// Whether the operator's results hold elements of its argument: they keep its grid.
bool moves_elements(const std::string& name);

/// Whether the operator is a quantizer of one scale that stands in the graph by itself.
bool is_fake_quantize(const std::string& name);

/// Whether the codes of a fake-quantizing node, with known grid, are all of 0..255.
bool spans_all_codes(const torch::jit::Node* node, const torch::jit::Module& module);

}  // namespace horizon::jit
