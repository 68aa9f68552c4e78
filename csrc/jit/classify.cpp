#include "jit/classify.h"

#include <torch/csrc/jit/ir/constants.h>

#include <algorithm>

#include "ops/checks.h"

namespace horizon::jit {
namespace {

using torch::jit::Node;
using torch::jit::Value;

std::optional<bool> constant_bool(const Value* value) {
  if (value == nullptr) return std::nullopt;
  const auto given = torch::jit::toIValue(value);
  if (!given.has_value() || !given->isBool()) return std::nullopt;
  return given->toBool();
}

// A traced convolution has its number of dimensions in the lengths of its lists alone.
std::optional<std::size_t> list_length(const Value* value) {
  if (value == nullptr) return std::nullopt;
  if (value->node()->kind() == c10::prim::ListConstruct) return value->node()->inputs().size();
  const auto given = torch::jit::toIValue(value);
  if (!given.has_value() || !given->isIntList()) return std::nullopt;
  return given->toIntVector().size();
}

std::optional<std::size_t> weight_dimensions(const Value* weight) {
  const auto type = weight->type()->cast<c10::TensorType>();
  return type == nullptr ? std::nullopt : type->dim();
}

std::string generic_kind(const Node* node) {
  const Value* flag = named_input(node, "transposed");
  const std::optional<bool> transposed = flag == nullptr ? false : constant_bool(flag);
  std::optional<std::size_t> dimensions = list_length(named_input(node, "dilation"));
  if (const auto weight = weight_dimensions(node->inputs()[1]); weight && *weight > 2) {
    dimensions = *weight - 2;
  }
  if (!transposed.has_value() || !dimensions.has_value()) return "conv";
  return (*transposed ? "conv_transpose" : "conv") + std::to_string(*dimensions) + "d";
}

std::string fused_kind(const Node* node) {
  const auto base = torch::jit::constant_as<int64_t>(named_input(node, "base"));
  if (!base.has_value()) return "conv";
  return *base == 0 ? "conv2d" : *base == 1 ? "conv_transpose2d" : "linear";
}

bool trains(const Node* node) {
  const std::string name = op_name(node);
  if (name == "aten::batch_norm") {
    // Without running statistics a batch norm uses those of its batch in eval mode, too.
    return constant_bool(named_input(node, "training")) == true &&
           !named_input(node, "running_mean")->mustBeNone();
  }
  if (name == "horizon::fused") return constant_bool(named_input(node, "batch_stats")) == true;
  const OpSupport* support = find_op_support(name);
  return support != nullptr &&
         std::string_view(support->relay ? support->relay : "") == "dropout" &&
         constant_bool(named_input(node, "train")) == true;
}

}  // namespace

bool is_tensor(const Value* value) { return value->type()->kind() == c10::TypeKind::TensorType; }

std::optional<AnchorOp> anchor_op(const Node* node) {
  const std::string name = op_name(node);
  const OpSupport* support = find_op_support(name);
  if (support == nullptr || support->role != Role::kAnchor || name != support->name) {
    return std::nullopt;
  }
  if (name == "aten::linear") return AnchorOp{"linear", false, 0, 1, std::nullopt};
  if (name == "horizon::fused") {
    const std::string kind = fused_kind(node);
    const auto index = [&](const char* argument) {
      return static_cast<std::size_t>(*node->schema().argumentIndexWithName(argument));
    };
    return AnchorOp{kind, kind != "linear", 0, index("weight"), index("skip")};
  }
  const bool generic = support->relay == nullptr;
  return AnchorOp{generic ? generic_kind(node) : name.substr(6), true, 0, 1, std::nullopt};
}

std::string anchor_obstacle(const Node* node, const AnchorOp& op, const PartitionOptions& options,
                            const Facts& facts, const Writers& writers,
                            const std::function<bool(const Value*)>& in_region) {
  const Value* data = node->inputs()[op.data];
  if (op.kind == "linear") {
    if (options.skip_dense_layer) return "skip_dense_layer is set";
  } else if (op.kind == "conv") {
    return "its number of dimensions is not constant";
  } else if (std::find(options.anchors.begin(), options.anchors.end(), op.kind) ==
             options.anchors.end()) {
    return op.kind + " is not among the anchors";
  }
  if (in_region(node->inputs()[op.weight])) return "its weight is the result of a quantized group";
  if (facts.is_integer(data)) return "its input holds integers";
  if (facts.is_constant(data)) return "its input is a constant";
  if (!is_tensor(data)) return "its input may be None";
  if (writers.writes_later(const_cast<Value*>(data))) return "its input is written in place";
  return "";
}

std::optional<std::size_t> follower_data(const Node* node, const Facts& facts) {
  const std::string name = op_name(node);
  const OpSupport* support = find_op_support(name);
  if (support == nullptr || node->inputs().empty()) return std::nullopt;
  if (support->role == Role::kFollower) {
    if (name == "aten::batch_norm" && constant_bool(named_input(node, "training")) != false) {
      return std::nullopt;
    }
    const auto others = node->inputs().slice(1);
    const bool settled = std::all_of(others.begin(), others.end(), [&](const Value* value) {
      return !is_tensor(value) || facts.is_constant(value);
    });
    return settled ? std::optional<std::size_t>(0) : std::nullopt;
  }
  if (support->role != Role::kArithmetic || node->inputs().size() < 2) return std::nullopt;
  const auto fixed = [&](const Value* value) {
    return facts.is_constant(value) || !is_tensor(value);
  };
  if (is_tensor(node->inputs()[0]) && fixed(node->inputs()[1])) return std::size_t{0};
  if (is_tensor(node->inputs()[1]) && fixed(node->inputs()[0])) return std::size_t{1};
  return std::nullopt;
}

bool is_join(const Node* node, const Facts& facts) {
  const OpSupport* support = find_op_support(op_name(node));
  if (support == nullptr || support->role != Role::kArithmetic || node->inputs().size() < 2) {
    return false;
  }
  const auto joins = [&](const Value* value) {
    return is_tensor(value) && !facts.is_constant(value);
  };
  return joins(node->inputs()[0]) && joins(node->inputs()[1]);
}

void check_eval_mode(const std::vector<Node*>& nodes) {
  for (const Node* node : nodes) {
    const std::string scope = node->scopeName();
    HORIZON_CHECK_VALUE(!trains(node), "partition", "obj", "in eval mode",
                        c10::str(op_name(node), " in training mode",
                                 scope.empty() ? "" : c10::str(" in '", scope, "'"),
                                 "; call eval() before tracing or scripting"));
  }
}

}  // namespace horizon::jit
