#include "jit/partition.h"

#include <unordered_map>

#include "jit/analyze.h"
#include "jit/pairs.h"
#include "jit/prepare.h"
#include "jit/record.h"
#include "ops/annotation.h"
#include "ops/checks.h"

namespace horizon::jit {
namespace {

using torch::jit::Graph;
using torch::jit::Value;

constexpr const char* kCall = "partition";

void check_options(const PartitionOptions& options) {
  HORIZON_CHECK_VALUE(ops::is_hint_dtype(options.dtype_input), kCall, "dtype_input",
                      ops::kHintDtypes, c10::str("'", options.dtype_input, "'"));
  for (const std::string& anchor : options.anchors) {
    HORIZON_CHECK_VALUE(anchor == "conv1d" || anchor == "conv2d" || anchor == "conv_transpose2d",
                        kCall, "anchors", "among conv1d, conv2d, conv_transpose2d",
                        c10::str("'", anchor, "'"));
  }
}

PartitionReport annotate(const std::shared_ptr<Graph>& graph, const PartitionOptions& options) {
  if (options.prepare) prepare_graph(graph);
  const Analysis analysis = analyze(graph, options, kCall);
  const Pairs existing(all_nodes(*graph), options.dtype_input, kCall);
  std::unordered_map<const Value*, Value*> pairs;
  std::vector<Value*> missing;
  for (Value* value : analysis.annotated) {
    if (Value* pair = existing.pair_of(value)) {
      pairs.emplace(value, pair);
    } else {
      missing.push_back(value);
    }
  }
  for (const BracketedUse& use : analysis.uses) {
    const auto pair = pairs.find(use.value);
    HORIZON_CHECK_VALUE(
        pair == pairs.end() || use.user->isAfter(pair->second->node()), kCall, "obj",
        "without annotations that a partition would not make",
        c10::str("a pair of %", use.value->debugName(), " behind a use of it; strip() it first"));
  }
  // Nothing fails from here on.
  const std::vector<Value*> made = insert_pairs(*graph, missing, options.dtype_input);
  for (std::size_t i = 0; i < made.size(); ++i) pairs.emplace(missing[i], made[i]);
  for (const BracketedUse& use : analysis.uses) {
    use.user->replaceInput(use.input, pairs.at(use.value));
  }
  PartitionReport report{options, analysis.convolutions};
  write_record(*graph, report);
  return report;
}

}  // namespace

PartitionReport partition(std::shared_ptr<Graph>& graph, const PartitionOptions& options) {
  check_options(options);
  check_registered(*graph, kCall);
  std::shared_ptr<Graph> copy = graph->copy();
  PartitionReport report = annotate(copy, options);
  graph = std::move(copy);
  return report;
}

PartitionReport partition_inplace(const std::shared_ptr<Graph>& graph,
                                  const PartitionOptions& options) {
  // Preparing changes the graph before anything can be refused.
  std::shared_ptr<Graph> trial = graph;
  partition(trial, options);
  return annotate(graph, options);
}

}  // namespace horizon::jit
