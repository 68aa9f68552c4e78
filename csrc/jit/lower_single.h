#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <optional>
#include <vector>

namespace torch::jit {
struct Module;
}

namespace horizon::jit {

/// One operator between groups, with what follows it up to the next pair, in the terms of codes.
struct SingleOp {
  torch::jit::Node* node = nullptr;
  /// Of horizon: quantized_cat, quantized_avg_pool2d, …; nullptr where elements only move.
  const char* name = nullptr;
  std::vector<torch::jit::Value*> operands;  ///< results of pairs
  std::vector<torch::jit::Value*> rest;      ///< the arguments between operands and grid
  std::vector<torch::jit::Node*> moves;      ///< what moves elements of the result, in order
  std::vector<torch::jit::Node*> passed;     ///< those among them that leave codes as they are
  torch::jit::Value* result = nullptr;       ///< what the pair at the end annotates
};

/// nullopt for an operator that has no counterpart on codes, does not read pairs, or whose result
/// is read by others than operators that move elements, one fake-quantize, and a pair.
std::optional<SingleOp> match_single_op(torch::jit::Node* node, const torch::jit::Module& module);

}  // namespace horizon::jit
