#include "jit/lower.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/passes/dead_code_elimination.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "jit/groups.h"
#include "jit/lower_grids.h"
#include "jit/lower_match.h"
#include "jit/lower_single.h"
#include "jit/lower_weights.h"
#include "jit/pairs.h"
#include "jit/partition.h"
#include "jit/record.h"
#include "ops/checks.h"
#include "ops/fold_batch_norm.h"
#include "ops/weights.h"

namespace horizon::jit {
namespace {

using torch::jit::Graph;
using torch::jit::Module;
using torch::jit::Node;
using torch::jit::Value;

Module copy_of(const Module& module) {
  Module copy = module.clone();
  write_record(*copy.get_method("forward").graph(),
               recorded_report(module.get_method("forward").graph()));
  return copy;
}

std::vector<Node*> hints_of(Graph& graph) {
  std::vector<Node*> hints;
  for (Node* node : all_nodes(graph)) {
    if (is_cast_hint(node)) hints.push_back(node);
  }
  return hints;
}

c10::Symbol op(const char* name) {
  return c10::Symbol::fromQualString(c10::str("horizon::", name));
}

std::optional<at::Tensor> given(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional<at::Tensor>(tensor) : std::nullopt;
}

class Lowering {
 public:
  Lowering(const Module& module, const std::shared_ptr<Graph>& graph,
           const std::vector<PairGrid>& grids)
      : module_(module), graph_(*graph), hints_(hints_of(*graph)), groups_(groups(graph)) {
    HORIZON_CHECK_VALUE(grids.size() == hints_.size(), "quantize", "grids",
                        c10::str("one for each of the ", hints_.size(), " pairs"), grids.size());
    for (std::size_t i = 0; i < hints_.size(); ++i) {
      if (grids[i].kind == PairGrid::Kind::kFloat) continue;
      grids_.emplace(hints_[i]->input(0), grids[i].grid);
    }
  }

  void run() {
    std::unordered_map<const Node*, const Group*> heads;
    for (const Group& group : groups_) heads.emplace(group.nodes.front(), &group);
    // In order: what comes later finds the codes of what it reads.
    for (Node* node : all_nodes(graph_)) {
      const auto head = heads.find(node);
      if (head == heads.end()) {
        const auto single = match_single_op(node, module_);
        if (single && has_grids(*single)) replace(*single);
        continue;
      }
      const auto matched = match_integer_group(*head->second, module_);
      if (matched && has_grids(*matched)) replace(*head->second, *matched);
    }
    for (Node* hint : hints_) {
      Value* pair = hint->output()->uses()[0].user->output();
      if (!pair->hasUses()) continue;
      Value* source = hint->input(0);
      pair->replaceAllUsesWith(grids_.count(source) != 0 ? float_of(source) : source);
    }
    torch::jit::EliminateDeadCode(graph_.block());
    // These write the state of their quantizers, which is why they outlive dead code elimination.
    for (Node* node : replaced_) {
      if (!node->hasUses()) node->destroy();
    }
  }

 private:
  // The inputs of an operator on codes: the codes, the scale, the zero point.
  void append_codes(std::vector<Value*>& inputs, Value* source) {
    inputs.push_back(codes_of(source));
    append_grid(inputs, source);
  }

  void append_grid(std::vector<Value*>& inputs, const Value* source) {
    inputs.push_back(graph_.insertConstant(at::full({}, grids_.at(source).scale, at::kFloat)));
    inputs.push_back(graph_.insertConstant(at::full({}, grids_.at(source).zero_point, at::kInt)));
  }

  // Behind the pair, which is behind the value; codes of a group that was replaced exist already.
  Value* codes_of(Value* source) {
    const auto found = codes_.find(source);
    if (found != codes_.end()) return found->second;
    torch::jit::WithInsertPoint here(pair_of(source)->node()->next());
    std::vector<Value*> inputs{source};
    append_grid(inputs, source);
    return codes_[source] = insert("quantize", inputs);
  }

  Value* float_of(Value* source) {
    Value* codes = codes_of(source);
    torch::jit::WithInsertPoint here(pair_of(source)->node()->next());
    if (codes->node()->isAfter(pair_of(source)->node())) {
      graph_.setInsertPoint(codes->node()->next());
    }
    std::vector<Value*> inputs{codes};
    append_grid(inputs, source);
    inputs.push_back(graph_.insertConstant(c10::IValue()));
    return insert("dequantize", inputs);
  }

  Value* pair_of(Value* source) const {
    for (const auto& use : source->uses()) {
      if (is_cast_hint(use.user)) return use.user->output()->uses()[0].user->output();
    }
    TORCH_INTERNAL_ASSERT(false);
  }

  Value* insert(const char* name, const std::vector<Value*>& inputs) {
    return graph_.insertNode(graph_.create(op(name), inputs))->output();
  }

  static Value* source_of(const Value* pair) {
    return const_cast<Value*>(pair)->node()->input(0)->node()->input(0);
  }

  void append_output(std::vector<Value*>& inputs, const IntegerGroup& group) {
    if (grids_.count(group.result) != 0) return append_grid(inputs, group.result);
    inputs.push_back(graph_.insertConstant(c10::IValue()));
    inputs.push_back(graph_.insertConstant(c10::IValue()));
  }

  // A prepared model's weights are quantized in each forward, whatever they hold.
  static WeightCodes weight_codes_of(const IntegerGroup& group) {
    if (!group.trained) return weight_codes(group.weight, group.base, group.groups);
    const at::Tensor scale = ops::weight_scale(group.weight, group.base, group.groups);
    return {scale, ops::quantize_weight(group.weight, scale, group.base, group.groups)};
  }

  Value* insert_convolution(const IntegerGroup& group) {
    const auto [scale, codes] = weight_codes_of(group);
    const auto [factor, offset] =
        ops::fold_batch_norm(given(group.bias), given(group.gamma), given(group.beta),
                             given(group.mean), given(group.var), group.eps, scale.size(0));
    std::vector<Value*> inputs;
    append_codes(inputs, source_of(group.operands[0]));
    if (group.one_dimensional) inputs[0] = insert_with_axis("unsqueeze", inputs[0]);
    for (const at::Tensor& tensor : {codes, scale, factor, offset}) {
      inputs.push_back(graph_.insertConstant(tensor));
    }
    if (group.operands.size() == 2) {
      append_codes(inputs, source_of(group.operands[1]));
    } else {
      for (int i = 0; i < 3; ++i) inputs.push_back(graph_.insertConstant(c10::IValue()));
    }
    append_output(inputs, group);
    inputs.push_back(graph_.insertConstant(group.base));
    for (const auto& list : {group.stride, group.padding, group.dilation, group.output_padding}) {
      inputs.push_back(graph_.insertConstant(list));
    }
    inputs.push_back(graph_.insertConstant(group.groups));
    inputs.push_back(graph_.insertConstant(group.activation));
    return insert("quantized_conv", inputs);
  }

  Value* insert_join(const IntegerGroup& group) {
    const bool add = group.head == IntegerGroup::Head::kAdd;
    std::vector<Value*> inputs;
    for (const Value* operand : group.operands) append_codes(inputs, source_of(operand));
    append_grid(inputs, group.result);
    inputs.push_back(graph_.insertConstant(group.activation));
    if (add) inputs.push_back(graph_.insertConstant(1.0));
    return insert(add ? "quantized_add" : "quantized_mul", inputs);
  }

  bool has_grids(const IntegerGroup& group) const {
    for (const Value* operand : group.operands) {
      if (grids_.count(source_of(operand)) == 0) return false;
    }
    const bool raw = group.head == IntegerGroup::Head::kConvolution && group.pools.empty();
    return raw || grids_.count(group.result) != 0;
  }

  // A single operator reads codes where all its operands have grids.
  bool has_grids(const SingleOp& single) const {
    const auto has = [&](const Value* value) { return grids_.count(value) != 0; };
    for (const Value* operand : single.operands) {
      if (!has(source_of(operand))) return false;
    }
    if (!has(single.result)) return false;
    if (single.name != nullptr) return true;
    const ValueGrid &from = grids_.at(source_of(single.operands[0])),
                    &to = grids_.at(single.result);
    return from.scale == to.scale && from.zero_point == to.zero_point;
  }

  // A fused group hands its grid on.
  void replace_grid_results(Node* head, const IntegerGroup& group) {
    if (head->outputs().size() < 3 || grids_.count(group.result) == 0) return;
    std::vector<Value*> grid;
    append_grid(grid, group.result);
    head->output(1)->replaceAllUsesWith(grid[0]);
    head->output(2)->replaceAllUsesWith(grid[1]);
  }

  void replace(const Group& whole, const IntegerGroup& group) {
    torch::jit::WithInsertPoint here(group.result->node()->next());
    const bool convolution = group.head == IntegerGroup::Head::kConvolution;
    Value* result = convolution ? insert_convolution(group) : insert_join(group);
    result->node()->setScope(group.result->node()->scope());
    for (Node* pool : group.pools) {
      std::vector<Value*> inputs(pool->inputs().begin(), pool->inputs().end());
      inputs[0] = result;
      if (group.one_dimensional) {
        const PoolWindow window = *window_of(pool);
        std::size_t place = 1;
        for (const auto& list :
             {window.kernel_size, window.stride, window.padding, window.dilation}) {
          inputs[place++] = graph_.insertConstant(list);
        }
      }
      result = insert("quantized_max_pool2d", inputs);
    }
    if (group.one_dimensional) result = insert_with_axis("squeeze", result);
    replace_grid_results(whole.nodes.front(), group);
    if (whole.nodes.front()->kind() == op("fused")) replaced_.push_back(whole.nodes.front());
    if (grids_.count(group.result) != 0) {
      codes_[group.result] = result;
      hand_shape_on(group.result, result);
    } else {
      group.result->replaceAllUsesWith(result);
    }
  }

  static void hand_shape_on(Value* value, Value* codes) {
    for (const torch::jit::Use& use : std::vector<torch::jit::Use>(value->uses())) {
      if (reads_shape(use.user)) use.user->replaceInput(use.offset, codes);
    }
  }

  // The axis of height one of a convolution over a line.
  Value* insert_with_axis(const char* name, Value* codes) {
    Node* node = graph_.create(c10::Symbol::aten(name), {codes, graph_.insertConstant(-2)});
    return graph_.insertNode(node)->output();
  }

  // Each operator behind its float form, so that the size of a value is read where it was.
  void replace(const SingleOp& single) {
    torch::jit::WithInsertPoint here(single.node->next());
    Value* codes = nullptr;
    if (single.name == nullptr) {
      codes = codes_of(source_of(single.operands[0]));
    } else {
      std::vector<Value*> inputs = operands_of(single);
      inputs.insert(inputs.end(), single.rest.begin(), single.rest.end());
      append_grid(inputs, single.result);
      codes = insert(single.name, inputs);
      codes->node()->setScope(single.node->scope());
      hand_shape_on(single.node->output(), codes);
    }
    for (Node* move : single.moves) {
      if (std::find(single.passed.begin(), single.passed.end(), move) == single.passed.end()) {
        graph_.setInsertPoint(move->next());
        std::vector<Value*> inputs(move->inputs().begin(), move->inputs().end());
        inputs[0] = codes;
        Node* moved = graph_.create(move->kind(), inputs);
        moved->setScope(move->scope());
        codes = graph_.insertNode(moved)->output();
      }
      hand_shape_on(move->output(), codes);
    }
    codes_[single.result] = codes;
  }

  std::vector<Value*> operands_of(const SingleOp& single) {
    std::vector<Value*> inputs;
    for (const Value* operand : single.operands) append_codes(inputs, source_of(operand));
    if (std::string_view(single.name) != "quantized_cat") return inputs;
    constexpr std::size_t kFields = 3;
    std::vector<Value*> lists;
    for (std::size_t field = 0; field < kFields; ++field) {
      std::vector<Value*> items;
      for (std::size_t i = field; i < inputs.size(); i += kFields) items.push_back(inputs[i]);
      lists.push_back(
          graph_.insertNode(graph_.createList(c10::TensorType::get(), items))->output());
    }
    return lists;
  }

  const Module& module_;
  Graph& graph_;
  std::vector<Node*> hints_;
  std::vector<Group> groups_;
  std::unordered_map<const Value*, ValueGrid> grids_;
  std::unordered_map<const Value*, Value*> codes_;
  std::vector<Node*> replaced_;
};

}  // namespace

Module add_observers(const Module& module, int64_t preset) {
  Module result = copy_of(module);
  Graph& graph = *result.get_method("forward").graph();
  const std::vector<Node*> hints = hints_of(graph);
  for (std::size_t i = 0; i < hints.size(); ++i) {
    Value* value = range_of(hints[i]->input(0));
    torch::jit::WithInsertPoint here(hints[i]->output()->uses()[0].user->next());
    std::vector<Value*> inputs{value};
    const std::pair<const char*, at::Tensor> state[] = {{"min_val", at::zeros({})},
                                                        {"max_val", at::zeros({})},
                                                        {"observed", at::zeros({}, at::kLong)},
                                                        {"scale", at::full({}, 1.0, at::kFloat)},
                                                        {"zero_point", at::zeros({}, at::kInt)}};
    for (const auto& [name, tensor] : state) {
      const std::string attribute = c10::str("horizon_", i, "_", name);
      result.register_attribute(attribute, c10::TensorType::get(), tensor);
      inputs.push_back(
          graph.insertNode(graph.createGetAttr(graph.inputs()[0], attribute))->output());
    }
    constexpr int64_t kRunningMinMax = 1;
    for (const c10::IValue& constant : {c10::IValue(preset), c10::IValue(kRunningMinMax),
                                        c10::IValue(0.01), c10::IValue(false)}) {
      inputs.push_back(graph.insertConstant(constant));
    }
    graph.insertNode(graph.create(op("observe_"), inputs, 0));
  }
  return result;
}

std::vector<PairGrid> known_grids(const Module& module) {
  std::vector<PairGrid> grids;
  for (Node* hint : hints_of(*module.get_method("forward").graph())) {
    grids.push_back(known_grid(hint->input(0), module));
  }
  return grids;
}

Module lower(const Module& module, const std::vector<PairGrid>& grids) {
  Module result = copy_of(module);
  const std::shared_ptr<Graph> graph = result.get_method("forward").graph();
  Lowering(result, graph, grids).run();
  erase_record(*graph);
  graph->lint();
  return result;
}

}  // namespace horizon::jit
