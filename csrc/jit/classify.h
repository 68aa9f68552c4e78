#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <functional>
#include <optional>
#include <string>

#include "jit/facts.h"
#include "jit/op_support.h"
#include "jit/partition.h"

namespace horizon::jit {

/// A convolution or linear operator: the kind, its data and its weight.
struct AnchorOp {
  std::string kind;  ///< "conv2d", "conv_transpose2d", "linear", …; "conv" where that is not known
  bool convolution;  ///< takes a number
  std::size_t data;
  std::size_t weight;
  std::optional<std::size_t> skip;  ///< the second tensor of a fused add
};

/// nullopt for any other operator.
std::optional<AnchorOp> anchor_op(const torch::jit::Node* node);

/// Why the operator cannot be an anchor, given which values lie in a region; empty where it can.
std::string anchor_obstacle(const torch::jit::Node* node, const AnchorOp& op,
                            const PartitionOptions& options, const Facts& facts,
                            const Writers& writers,
                            const std::function<bool(const torch::jit::Value*)>& in_region);

/// The input that carries the data of a follower, where `node` is one: relu, clip, max pooling,
/// batch norm in eval mode, dropout, add and mul with a constant on either side.
std::optional<std::size_t> follower_data(const torch::jit::Node* node, const Facts& facts);

/// Whether `node` is an add or a mul of two tensors that are not constant.
bool is_join(const torch::jit::Node* node, const Facts& facts);

/// Whether the value is a tensor, neither optional nor a list.
bool is_tensor(const torch::jit::Value* value);

/// ValueError for batch norm, dropout and fused groups in training mode.
void check_eval_mode(const std::vector<torch::jit::Node*>& nodes);

}  // namespace horizon::jit
