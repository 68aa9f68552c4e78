#include "jit/record.h"

#include <algorithm>
#include <sstream>

#include "ops/checks.h"

namespace horizon::jit {
namespace {

using torch::jit::Graph;
using torch::jit::Node;

struct Names {
  c10::Symbol dtype = c10::Symbol::attr("horizon_dtype_input");
  c10::Symbol skip = c10::Symbol::attr("horizon_skip_conv_layers");
  c10::Symbol dense = c10::Symbol::attr("horizon_skip_dense_layer");
  c10::Symbol anchors = c10::Symbol::attr("horizon_anchors");
  c10::Symbol outputs = c10::Symbol::attr("horizon_annotate_outputs");
  c10::Symbol kinds = c10::Symbol::attr("horizon_kinds");
  c10::Symbol scopes = c10::Symbol::attr("horizon_scopes");
  c10::Symbol statuses = c10::Symbol::attr("horizon_statuses");
};

const Names& names() {
  static const Names all;
  return all;
}

}  // namespace

void write_record(Graph& graph, const PartitionReport& report) {
  Node* node = graph.param_node();
  const PartitionOptions& options = report.options;
  std::vector<std::string> kinds, scopes, statuses;
  for (const ConvolutionReport& row : report.convolutions) {
    kinds.push_back(row.kind);
    scopes.push_back(row.scope);
    statuses.push_back(row.status);
  }
  node->s_(names().dtype, options.dtype_input);
  node->is_(names().skip, std::vector<int64_t>(options.skip_conv_layers));
  node->i_(names().dense, options.skip_dense_layer);
  node->ss_(names().anchors, std::vector<std::string>(options.anchors));
  node->i_(names().outputs, options.annotate_outputs);
  node->ss_(names().kinds, std::move(kinds));
  node->ss_(names().scopes, std::move(scopes));
  node->ss_(names().statuses, std::move(statuses));
}

void erase_record(Graph& graph) {
  if (!has_record(graph)) return;
  Node* node = graph.param_node();
  for (const c10::Symbol name :
       {names().dtype, names().skip, names().dense, names().anchors, names().outputs, names().kinds,
        names().scopes, names().statuses}) {
    node->removeAttribute(name);
  }
}

bool has_record(Graph& graph) { return graph.param_node()->hasAttribute(names().dtype); }

PartitionReport recorded_report(const std::shared_ptr<Graph>& graph) {
  TORCH_CHECK(has_record(*graph),
              "report: 'obj' must be partitioned, got a graph without the record of a partition; "
              "call horizon.jit.partition first");
  const Node* node = graph->param_node();
  PartitionReport report;
  report.options.dtype_input = node->s(names().dtype);
  report.options.skip_conv_layers = node->is(names().skip);
  report.options.skip_dense_layer = node->i(names().dense) != 0;
  report.options.anchors = node->ss(names().anchors);
  report.options.annotate_outputs = node->i(names().outputs) != 0;
  const auto& kinds = node->ss(names().kinds);
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    report.convolutions.push_back({static_cast<int64_t>(i), kinds[i], node->ss(names().scopes)[i],
                                   node->ss(names().statuses)[i]});
  }
  return report;
}

std::string PartitionReport::str() const {
  std::size_t kind_width = 4, scope_width = 5;
  for (const ConvolutionReport& row : convolutions) {
    kind_width = std::max(kind_width, row.kind.size());
    scope_width = std::max(scope_width, row.scope.size());
  }
  const auto padded = [](std::string text, std::size_t width) {
    text.resize(std::max(text.size(), width), ' ');
    return text;
  };
  std::ostringstream out;
  out << "number  " << padded("kind", kind_width) << "  " << padded("scope", scope_width)
      << "  status\n";
  for (const ConvolutionReport& row : convolutions) {
    out << padded(std::to_string(row.number), 6) << "  " << padded(row.kind, kind_width) << "  "
        << padded(row.scope, scope_width) << "  " << row.status << "\n";
  }
  return out.str();
}

}  // namespace horizon::jit
