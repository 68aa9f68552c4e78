#include "jit/analyze.h"

#include <algorithm>
#include <utility>

#include "jit/classify.h"
#include "jit/facts.h"
#include "jit/op_support.h"
#include "ops/checks.h"

namespace horizon::jit {
namespace {

using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Use;
using torch::jit::Value;

bool reads_metadata(const Node* node) {
  const OpSupport* support = find_op_support(op_name(node));
  return support != nullptr && support->role == Role::kMetadata;
}

// Containers that only the return reads are part of it.
bool is_returned(const Node* node, const Graph& graph) {
  while (node != graph.return_node()) {
    const bool container = node->kind() == c10::prim::TupleConstruct ||
                           node->kind() == c10::prim::ListConstruct ||
                           node->kind() == c10::prim::DictConstruct;
    if (!container || node->output()->uses().size() != 1) return false;
    node = node->output()->uses()[0].user;
  }
  return true;
}

class Walk {
 public:
  Walk(const std::shared_ptr<Graph>& graph, const PartitionOptions& options,
       const std::vector<Node*>& nodes, const char* call)
      : graph_(graph),
        options_(options),
        pairs_(nodes, options.dtype_input, call),
        facts_(*graph),
        writers_(graph, nodes),
        skipped_(options.skip_conv_layers.begin(), options.skip_conv_layers.end()) {}

  Analysis run() {
    visit(graph_->block());
    for (const RegionNode& row : analysis_.region_nodes) close_shared(row.node->output(0));
    std::sort(analysis_.annotated.begin(), analysis_.annotated.end(),
              [&](const Value* a, const Value* b) { return place(a) < place(b); });
    return std::move(analysis_);
  }

 private:
  // The inputs of a block come before its nodes.
  std::pair<std::size_t, std::size_t> place(const Value* value) const {
    const auto found = places_.find(value->node());
    return {found == places_.end() ? 0 : found->second, value->offset()};
  }

  void visit(Block* block) {
    places_.emplace(block->param_node(), places_.size());
    for (Node* node : block->nodes()) {
      if (is_cast_hint(node) || is_stop_fusion(node)) continue;
      places_.emplace(node, places_.size());
      facts_.visit(node);
      visit(node);
      for (Block* inner : node->blocks()) visit(inner);
    }
    bracket_region_operands(block->return_node());
  }

  void visit(Node* node) {
    if (reads_metadata(node)) return;
    if (const auto op = anchor_op(node)) {
      const std::string obstacle = take_number(node, *op);
      if (!obstacle.empty()) return bracket_region_operands(node);
      bracket(node, op->data);
      if (op->skip.has_value() && is_tensor(node->input(*op->skip))) bracket(node, *op->skip);
      bracket_region_operands(node);
      return enter_region({node, nullptr, true});
    }
    if (const auto data = follower_data(node, facts_)) {
      if (!in_region(node, *data)) return bracket_region_operands(node);
      bracket_region_operands(node, *data);
      return enter_region({node, node->input(*data), false});
    }
    if (is_join(node, facts_) && (in_region(node, 0) || in_region(node, 1))) {
      bracket(node, 0);
      bracket(node, 1);
      bracket_region_operands(node);
      return enter_region({node, nullptr, false});
    }
    bracket_region_operands(node);
  }

  // The obstacle of an anchor; a convolution takes its number, whatever becomes of it.
  std::string take_number(const Node* node, const AnchorOp& op) {
    const auto number = static_cast<int64_t>(analysis_.convolutions.size());
    std::string obstacle =
        anchor_obstacle(node, op, options_, facts_, writers_, [&](const Value* value) {
          return region_.count(pairs_.source(const_cast<Value*>(value))) != 0;
        });
    if (!op.convolution) return obstacle;
    if (obstacle.empty() && skipped_.count(number) != 0) obstacle = "skipped";
    analysis_.convolutions.push_back(
        {number, op.kind, node->scopeName(), obstacle.empty() ? "quantized" : obstacle});
    return obstacle;
  }

  // Blocks are separate: what an outer region produced is closed where a block begins.
  bool in_region(const Node* node, std::size_t input) const {
    const Value* value = pairs_.source(const_cast<Value*>(node->inputs()[input]));
    return region_.count(value) != 0 && value->node()->owningBlock() == node->owningBlock();
  }

  void enter_region(const RegionNode& row) {
    region_.insert(row.node->output(0));
    analysis_.region_nodes.push_back(row);
  }

  void bracket(Node* user, std::size_t input) {
    Value* value = pairs_.source(user->input(input));
    if (!can_annotate(value)) return;
    analysis_.uses.push_back({user, input, value});
    if (annotated_.insert(value).second) analysis_.annotated.push_back(value);
  }

  bool can_annotate(Value* value) const {
    return is_tensor(value) && !facts_.is_constant(value) && !facts_.is_integer(value) &&
           !writers_.writes_later(value);
  }

  void bracket_region_operands(Node* user, std::optional<std::size_t> except = std::nullopt) {
    if (!options_.annotate_outputs && is_returned(user, *graph_)) return;
    for (std::size_t input = 0; input < user->inputs().size(); ++input) {
      if (input == except) continue;
      if (region_.count(pairs_.source(user->input(input))) != 0) bracket(user, input);
    }
  }

  // A value in a region that is read twice or more ends the region.
  void close_shared(Value* value) {
    std::vector<Use> uses;
    const auto collect = [&](const Value* from) {
      for (const Use& use : from->uses()) {
        if (!is_cast_hint(use.user) && !reads_metadata(use.user)) uses.push_back(use);
      }
    };
    collect(value);
    if (const Value* pair = pairs_.pair_of(value)) collect(pair);
    if (uses.size() < 2) return;
    for (const Use& use : uses) {
      if (options_.annotate_outputs || !is_returned(use.user, *graph_)) {
        bracket(use.user, use.offset);
      }
    }
  }

  std::shared_ptr<Graph> graph_;
  const PartitionOptions& options_;
  Pairs pairs_;
  Facts facts_;
  Writers writers_;
  std::unordered_set<int64_t> skipped_;
  std::unordered_set<const Value*> region_;
  std::unordered_set<const Value*> annotated_;
  std::unordered_map<const Node*, std::size_t> places_;
  Analysis analysis_;
};

void check_numbers(const PartitionOptions& options, std::size_t count, const char* call) {
  const auto limit = static_cast<int64_t>(count);
  for (const int64_t number : options.skip_conv_layers) {
    HORIZON_CHECK_VALUE(
        number >= 0 && number < limit, call, "skip_conv_layers",
        limit == 0 ? std::string("empty, as there are no convolutions")
                   : c10::str("numbers from 0 to ", limit - 1, ", one for each convolution"),
        number);
  }
}

}  // namespace

Analysis analyze(const std::shared_ptr<Graph>& graph, const PartitionOptions& options,
                 const char* call) {
  Analysis analysis = Walk(graph, options, all_nodes(*graph), call).run();
  check_numbers(options, analysis.convolutions.size(), call);
  return analysis;
}

}  // namespace horizon::jit
