#include "jit/lower_grids.h"

#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/constants.h>

#include "jit/facts.h"
#include "jit/op_support.h"
#include "jit/pairs.h"

namespace horizon::jit {
namespace {

using torch::jit::Module;
using torch::jit::Node;
using torch::jit::Value;

std::optional<double> number_now(const Node* node, const char* name, const Module& module) {
  const Value* value = named_input(node, name);
  const auto given = value == nullptr ? std::nullopt : value_now(value, module);
  if (!given) return std::nullopt;
  if (given->isTensor() && given->toTensor().numel() == 1) return given->toTensor().item<double>();
  if (given->isBool()) return given->toBool();
  if (given->isInt()) return static_cast<double>(given->toInt());
  return given->isDouble() ? std::optional<double>(given->toDouble()) : std::nullopt;
}

PairGrid grid_of(const Node* node, const Module& module, double quant_min) {
  const auto scale = number_now(node, "scale", module);
  const auto zero_point = number_now(node, "zero_point", module);
  if (!scale || !zero_point) return {};
  return {PairGrid::Kind::kFixed,
          {static_cast<float>(*scale), static_cast<int32_t>(*zero_point - quant_min)}};
}

// Our operators' quantizers: their own zero points, and the grid of a preset.
PairGrid quantizer_grid(const Node* node, const Module& module) {
  if (number_now(node, "fake_quantize", module) != 1.0) return {};
  const auto preset = number_now(node, "preset", module);
  if (!preset) return {};
  return grid_of(node, module, *preset == 2.0 ? 0.0 : -128.0);
}

bool keeps_grid(const std::string& name) {
  return moves_elements(name) || name == "aten::max_pool1d" || name == "aten::max_pool2d" ||
         name == "aten::dropout" || name == "aten::feature_dropout" ||
         name == "horizon::straight_through" || name == "annotation::cast_hint" ||
         name == "annotation::stop_fusion";
}

// A quantizer that is no part of ours: its own range of codes.
PairGrid fake_quantize_grid(const Node* node, const Module& module) {
  const auto low = number_now(node, "quant_min", module);
  const auto high = number_now(node, "quant_max", module);
  if (!low || !high || *high - *low > 255) return {};
  return grid_of(node, module, *low);
}

}  // namespace

bool moves_elements(const std::string& name) {
  const OpSupport* support = find_op_support(name);
  return support != nullptr && support->keeps_grid && support->role == Role::kOther;
}

bool is_fake_quantize(const std::string& name) {
  return name == "aten::fake_quantize_per_tensor_affine" ||
         name == "horizon::fake_quantize_per_tensor";
}

bool spans_all_codes(const Node* node, const Module& module) {
  const auto low = number_now(node, "quant_min", module);
  const auto high = number_now(node, "quant_max", module);
  return low && high && *high - *low == 255 &&
         fake_quantize_grid(node, module).kind == PairGrid::Kind::kFixed;
}

std::optional<c10::IValue> value_now(const Value* value, const Module& module) {
  if (const auto constant = torch::jit::toIValue(value)) return constant;
  const Node* node = value->node();
  if (node->kind() == c10::prim::GetAttr) {
    const auto object = value_now(node->inputs()[0], module);
    if (!object || !object->isObject()) return std::nullopt;
    return object->toObject()->getAttr(node->s(c10::attr::name));
  }
  // How our modules make stored zero points and fresh scales of their buffers.
  if (node->kind() == c10::aten::clone || node->kind() == c10::aten::sub) {
    torch::jit::Stack stack;
    for (const Value* input : node->inputs()) {
      const auto now = value_now(input, module);
      if (!now) return std::nullopt;
      stack.push_back(*now);
    }
    node->getOperation()(stack);
    return stack.back();
  }
  const bool self = node->kind() == c10::prim::Param && value->offset() == 0 &&
                    value->type()->kind() == c10::TypeKind::ClassType;
  return self ? std::optional<c10::IValue>(module._ivalue()) : std::nullopt;
}

PairGrid known_grid(Value* value, const Module& module) {
  for (;;) {
    const Node* node = value->node();
    const std::string name = op_name(node);
    if (keeps_grid(name) && !node->inputs().empty()) {
      value = const_cast<Node*>(node)->input(0);
      continue;
    }
    if (name == "horizon::dequantize") {
      const Value* scale = named_input(node, "scale");
      const bool handed_on =
          scale->offset() == 1 && named_input(scale->node(), "preset") != nullptr;
      return handed_on ? quantizer_grid(scale->node(), module) : grid_of(node, module, 0.0);
    }
    if (value->offset() != 0) return {};
    if (is_fake_quantize(name)) return fake_quantize_grid(node, module);
    if (name == "horizon::quantize_activation") return quantizer_grid(node, module);
    if (name != "horizon::fused") return {};
    const PairGrid grid = quantizer_grid(node, module);
    // Without a quantizer the group's result is float, and stays so.
    const bool raw = named_input(node, "scale")->mustBeNone();
    return raw ? PairGrid{PairGrid::Kind::kFloat, {}} : grid;
  }
}

}  // namespace horizon::jit
