#include "jit/lower_match.h"

#include <torch/csrc/jit/ir/constants.h>

#include <algorithm>

#include "jit/classify.h"
#include "jit/facts.h"
#include "jit/lower_grids.h"
#include "jit/pairs.h"

namespace horizon::jit {
namespace {

using torch::jit::Node;
using torch::jit::Value;

std::optional<c10::IValue> constant(const Node* node, const char* name) {
  const Value* value = named_input(node, name);
  return value == nullptr ? std::nullopt : torch::jit::toIValue(value);
}

std::optional<int64_t> integer(const Node* node, const char* name) {
  const auto given = constant(node, name);
  return given && given->isInt() ? std::optional<int64_t>(given->toInt()) : std::nullopt;
}

std::optional<double> number(const Node* node, const char* name) {
  const auto given = constant(node, name);
  if (given && given->isDouble()) return given->toDouble();
  if (given && given->isInt()) return static_cast<double>(given->toInt());
  return std::nullopt;
}

std::optional<std::vector<int64_t>> constant_list(const Value* value) {
  std::vector<int64_t> items;
  if (value->node()->kind() == c10::prim::ListConstruct) {
    for (const Value* item : value->node()->inputs()) {
      const auto one = torch::jit::constant_as<int64_t>(item);
      if (!one) return std::nullopt;
      items.push_back(*one);
    }
    return items;
  }
  const auto given = torch::jit::toIValue(value);
  if (!given || !given->isIntList()) return std::nullopt;
  return given->toIntVector();
}

bool read_ints(const Node* node, const char* name, std::vector<int64_t>& result) {
  const Value* value = named_input(node, name);
  if (value == nullptr) return true;
  auto items = constant_list(value);
  if (!items) return false;
  if (items->size() == 1) items->push_back(items->front());
  if (items->size() != 2) return false;
  result = *std::move(items);
  return true;
}

// A constant float tensor, undefined for None; false for anything else.
bool read_tensor(const Node* node, const char* name, at::Tensor& result) {
  const Value* value = named_input(node, name);
  if (value == nullptr) return true;
  if (value->mustBeNone()) return true;
  const auto given = torch::jit::toIValue(value);
  if (!given || !given->isTensor() || !given->toTensor().is_floating_point()) return false;
  result = given->toTensor().detach();
  return true;
}

// "same" pads the odd one at the end.
bool read_padding(const Node* node, IntegerGroup& group) {
  const auto mode = constant(node, "padding");
  if (!mode || !mode->isString()) return read_ints(node, "padding", group.padding);
  if (mode->toStringRef() == "valid") return true;
  if (mode->toStringRef() != "same" || group.base != 0) return false;
  group.padding.assign(4, 0);
  for (int64_t i = 0; i < 2; ++i) {
    const int64_t total = group.dilation[i] * (group.weight.size(i + 2) - 1);
    group.padding[i] = total / 2;
    group.padding[i + 2] = total - total / 2;
  }
  return true;
}

std::optional<int64_t> base_of(const std::string& kind) {
  if (kind == "conv1d" || kind == "conv2d") return 0;
  if (kind == "conv_transpose2d") return 1;
  return kind == "linear" ? std::optional<int64_t>(2) : std::nullopt;
}

bool match_convolution(const Node* node, const AnchorOp& op, IntegerGroup& group) {
  const auto base = base_of(op.kind);
  if (!base || op.skip.has_value()) return false;
  group.base = *base;
  group.one_dimensional = op.kind.ends_with("1d");
  if (!read_tensor(node, "weight", group.weight) || !group.weight.defined()) return false;
  const int64_t dimensions = group.base == 2 ? 2 : group.one_dimensional ? 3 : 4;
  if (group.weight.dim() != dimensions) return false;
  if (group.one_dimensional) group.weight = group.weight.unsqueeze(2);
  if (!read_tensor(node, "bias", group.bias)) return false;
  if (group.base == 2) return true;
  const auto groups = integer(node, "groups");
  if (!groups) return false;
  group.groups = *groups;
  const bool known =
      read_ints(node, "stride", group.stride) && read_ints(node, "dilation", group.dilation) &&
      read_ints(node, "output_padding", group.output_padding) && read_padding(node, group);
  if (group.one_dimensional) {
    // A single entry was read for both axes.
    group.stride[0] = group.dilation[0] = 1;
    group.padding[0] = group.output_padding[0] = 0;
  }
  return known;
}

// A prepared model's group; its arguments are attributes of the module where freezing left them.
bool match_fused(const Node* node, const torch::jit::Module& module, IntegerGroup& group) {
  bool known = true;
  const auto now = [&](const char* name) {
    Value* value = named_input(node, name);
    if (value->node()->kind() == c10::prim::ListConstruct) {
      std::vector<int64_t> items;
      for (const Value* item : value->node()->inputs()) {
        const auto one = torch::jit::constant_as<int64_t>(item);
        known = known && one.has_value();
        items.push_back(one.value_or(0));
      }
      return c10::IValue(items);
    }
    const auto given = value_now(value, module);
    known = known && given.has_value();
    return given.value_or(c10::IValue());
  };
  const auto tensor = [&](const char* name) {
    const c10::IValue given = now(name);
    return given.isTensor() ? given.toTensor().detach() : at::Tensor();
  };
  const c10::IValue integer = now("integer"), quantizes = now("quantize_weight");
  const c10::IValue numbers[] = {now("base"), now("groups"), now("activation"), now("eps")};
  const c10::IValue lists[] = {now("stride"), now("padding"), now("dilation"),
                               now("output_padding")};
  group.weight = tensor("weight");
  group.bias = tensor("bias");
  if (!known || !integer.toBool() || !quantizes.toBool() || !group.weight.defined()) return false;
  group.base = numbers[0].toInt();
  group.groups = numbers[1].toInt();
  group.activation = numbers[2].toInt();
  group.stride = lists[0].toIntVector();
  group.padding = lists[1].toIntVector();
  group.dilation = lists[2].toIntVector();
  group.output_padding = lists[3].toIntVector();
  group.trained = true;
  if (now("batch_norm").toBool()) {
    group.gamma = tensor("bn_weight");
    group.beta = tensor("bn_bias");
    group.mean = tensor("running_mean");
    group.var = tensor("running_var");
    group.eps = numbers[3].toDouble();
  }
  return known;
}

bool match_head(const Node* node, const torch::jit::Module& module, IntegerGroup& group) {
  const auto take = [&](std::size_t input) {
    Value* value = const_cast<Value*>(node->inputs()[input]);
    group.operands.push_back(value);
    return is_stop_fusion(value->node());
  };
  if (const auto op = anchor_op(node)) {
    if (op_name(node) != "horizon::fused") {
      return match_convolution(node, *op, group) && take(op->data);
    }
    if (!match_fused(node, module, group) || !take(op->data)) return false;
    return node->inputs()[*op->skip]->mustBeNone() || take(*op->skip);
  }
  const std::string name = op_name(node);
  const bool add = name == "aten::add";
  if (!add && name != "aten::mul") return false;
  group.head = add ? IntegerGroup::Head::kAdd : IntegerGroup::Head::kMul;
  if (add && number(node, "alpha") != 1.0) return false;
  return take(0) && take(1);
}

bool match_batch_norm(const Node* node, IntegerGroup& group) {
  const bool first = group.head == IntegerGroup::Head::kConvolution && !group.mean.defined() &&
                     group.activation == 0 && group.pools.empty();
  const auto eps = number(node, "eps");
  if (!first || !eps) return false;
  // Of three dimensions the last one are a linear layer's channels, and the second a batch norm's;
  // how many there are, a frozen graph does not say.
  constexpr int64_t kLinear = 2;
  if (group.base == kLinear) return false;
  group.eps = *eps;
  return read_tensor(node, "weight", group.gamma) && read_tensor(node, "bias", group.beta) &&
         read_tensor(node, "running_mean", group.mean) && group.mean.defined() &&
         read_tensor(node, "running_var", group.var) && group.var.defined();
}

// 1 for relu, 2 for relu6, 0 for other clips.
int64_t activation_of(const Node* node, const std::string& name) {
  if (name == "aten::relu") return 1;
  if (name == "aten::relu6") return 2;
  const bool hardtanh = name == "aten::hardtanh";
  if (!hardtanh && name != "aten::clamp") return 0;
  const auto low = number(node, hardtanh ? "min_val" : "min");
  const auto high = number(node, hardtanh ? "max_val" : "max");
  if (low != 0.0) return 0;
  if (high == 6.0) return 2;
  const Value* limit = named_input(node, hardtanh ? "max_val" : "max");
  return limit != nullptr && limit->mustBeNone() ? 1 : 0;
}

bool match_follower(Node* node, const torch::jit::Module& module, IntegerGroup& group) {
  const std::string name = op_name(node);
  if (name == "aten::dropout" || name == "aten::feature_dropout") return true;
  if (name == (group.one_dimensional ? "aten::max_pool1d" : "aten::max_pool2d")) {
    group.pools.push_back(node);
    return !group.one_dimensional || window_of(node).has_value();
  }
  // Behind its quantizer a group has codes, which nothing but a pooling passes on.
  if (group.quantizes) return false;
  if (is_fake_quantize(name)) {
    group.quantizes = true;
    return spans_all_codes(node, module);
  }
  if (name == "aten::batch_norm") return match_batch_norm(node, group);
  const int64_t activation = activation_of(node, name);
  if (activation == 0 || group.activation != 0 || !group.pools.empty()) return false;
  group.activation = activation;
  return true;
}

}  // namespace

std::optional<IntegerGroup> match_integer_group(const Group& group,
                                                const torch::jit::Module& module) {
  IntegerGroup result;
  if (!match_head(group.nodes.front(), module, result)) return std::nullopt;
  const Node* head = group.nodes.front();
  const Value* data = head->outputs()[0];
  for (std::size_t i = 1; i < group.nodes.size(); ++i) {
    Node* node = group.nodes[i];
    // Arithmetic between the operators has no place in a single one.
    if (node->inputs().empty() || node->input(0) != data || node->outputs().size() != 1) {
      return std::nullopt;
    }
    if (!match_follower(node, module, result)) return std::nullopt;
    data = node->output();
  }
  result.result = group.nodes.back()->output(0);
  for (const Value* exit : group.exits) {
    // The further results of a fused group are its grid, which is known.
    const bool grid = exit->node() == head && exit->offset() != 0;
    if (exit != result.result && !grid) return std::nullopt;
  }
  auto uses = result.result->uses();
  uses.erase(std::remove_if(uses.begin(), uses.end(),
                            [](const auto& use) { return reads_shape(use.user); }),
             uses.end());
  const bool closed = uses.size() == 1 && is_cast_hint(uses[0].user);
  const bool raw = std::none_of(uses.begin(), uses.end(),
                                [](const auto& use) { return is_cast_hint(use.user); });
  // Without a pair the result is float, which only a convolution gives.
  const bool can_be_raw =
      result.head == IntegerGroup::Head::kConvolution && result.pools.empty() && !result.quantizes;
  if (!closed && !(raw && can_be_raw)) return std::nullopt;
  return result;
}

std::optional<PoolWindow> window_of(const Node* node) {
  PoolWindow window;
  const bool known = read_ints(node, "kernel_size", window.kernel_size) &&
                     read_ints(node, "padding", window.padding) &&
                     read_ints(node, "dilation", window.dilation);
  if (!known) return std::nullopt;
  const auto stride = constant_list(named_input(node, "stride"));
  if (!stride) return std::nullopt;
  // An empty stride is the kernel's.
  window.stride = stride->empty() ? window.kernel_size : std::vector<int64_t>(2, stride->front());
  window.kernel_size[0] = window.stride[0] = window.dilation[0] = 1;
  window.padding[0] = 0;
  return window;
}

bool reads_shape(const Node* node) {
  const std::string name = op_name(node);
  return name == "aten::size" || name == "aten::dim";
}

Value* range_of(Value* value) {
  for (;;) {
    const std::string name = op_name(value->node());
    const bool keeps = name == "aten::max_pool1d" || name == "aten::max_pool2d" ||
                       name == "aten::dropout" || name == "aten::feature_dropout";
    if (!keeps || is_stop_fusion(value->node()->input(0)->node())) return value;
    value = value->node()->input(0);
  }
}

}  // namespace horizon::jit
