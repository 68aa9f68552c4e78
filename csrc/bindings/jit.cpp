#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/ir.h>

#include <memory>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "jit/dump.h"
#include "jit/groups.h"
#include "jit/lower.h"
#include "jit/op_support.h"
#include "jit/pairs.h"
#include "jit/partition.h"
#include "jit/prepare.h"
#include "jit/record.h"

namespace py = pybind11;

// Graph and Module are torch's own Python types: both extensions use PyTorch's pybind11 headers and
// so share one type registry.
namespace horizon::bindings {
namespace {

using torch::jit::Graph;
using torch::jit::Module;
using GraphPtr = std::shared_ptr<Graph>;

[[noreturn]] void raise(PyObject* type, const c10::Error& error) {
  PyErr_SetString(type, error.what_without_backtrace());
  throw py::error_already_set();
}

template <class Function>
auto translated(Function function) {
  try {
    return function();
  } catch (const c10::ValueError& error) {
    raise(PyExc_ValueError, error);
  } catch (const c10::TypeError& error) {
    raise(PyExc_TypeError, error);
  } catch (const c10::NotImplementedError& error) {
    raise(PyExc_NotImplementedError, error);
  } catch (const c10::Error& error) {
    raise(PyExc_RuntimeError, error);
  }
}

// (dtype_input, skip_conv_layers, skip_dense_layer, anchors, annotate_outputs, prepare)
using Options =
    std::tuple<std::string, std::vector<int64_t>, bool, std::vector<std::string>, bool, bool>;
// (options, [(number, kind, scope, status)])
using Report =
    std::tuple<Options, std::vector<std::tuple<int64_t, std::string, std::string, std::string>>>;

jit::PartitionOptions to_options(const Options& fields) {
  const auto& [dtype, skip, dense, anchors, outputs, prepare] = fields;
  return {dtype, skip, dense, anchors, outputs, prepare};
}

Report to_python(const jit::PartitionReport& report) {
  const jit::PartitionOptions& given = report.options;
  Report fields;
  std::get<0>(fields) = {given.dtype_input, given.skip_conv_layers, given.skip_dense_layer,
                         given.anchors,     given.annotate_outputs, given.prepare};
  for (const jit::ConvolutionReport& row : report.convolutions) {
    std::get<1>(fields).emplace_back(row.number, row.kind, row.scope, row.status);
  }
  return fields;
}

GraphPtr partition(const GraphPtr& graph, const Options& options, bool inplace) {
  return translated([&] {
    GraphPtr result = graph;
    if (inplace) {
      jit::partition_inplace(graph, to_options(options));
    } else {
      jit::partition(result, to_options(options));
    }
    return result;
  });
}

void write_record(const GraphPtr& graph, const Report& fields) {
  jit::PartitionReport report;
  report.options = to_options(std::get<0>(fields));
  for (const auto& [number, kind, scope, status] : std::get<1>(fields)) {
    report.convolutions.push_back({number, kind, scope, status});
  }
  jit::write_record(*graph, report);
}

// (anchor's place or -1, places of the nodes, names of the entries, names of the exits, graph)
using GroupFields =
    std::tuple<int, std::vector<int>, std::vector<std::string>, std::vector<std::string>, GraphPtr>;

// Places are those of a walk over all nodes, blocks included.
std::vector<GroupFields> groups(const GraphPtr& graph) {
  return translated([&] {
    std::unordered_map<const torch::jit::Node*, int> places;
    for (const torch::jit::Node* node : jit::all_nodes(*graph)) {
      places.emplace(node, static_cast<int>(places.size()));
    }
    std::vector<GroupFields> result;
    for (const jit::Group& group : jit::groups(graph)) {
      GroupFields fields;
      auto& [anchor, nodes, entries, exits, own] = fields;
      anchor = group.anchor == nullptr ? -1 : places.at(group.anchor);
      for (const torch::jit::Node* node : group.nodes) nodes.push_back(places.at(node));
      for (const torch::jit::Value* value : group.entries) entries.push_back(value->debugName());
      for (const torch::jit::Value* value : group.exits) exits.push_back(value->debugName());
      own = jit::extract(group);
      result.push_back(std::move(fields));
    }
    return result;
  });
}

// (kind: 0 unknown, 1 fixed, 2 float; scale; stored zero point)
using PairGridFields = std::tuple<int64_t, double, int64_t>;

std::vector<PairGridFields> known_grids(const Module& module) {
  return translated([&] {
    std::vector<PairGridFields> fields;
    for (const jit::PairGrid& known : jit::known_grids(module)) {
      fields.emplace_back(static_cast<int64_t>(known.kind), known.grid.scale,
                          known.grid.zero_point);
    }
    return fields;
  });
}

Module lower(const Module& module, const std::vector<PairGridFields>& grids) {
  return translated([&] {
    std::vector<jit::PairGrid> values;
    for (const auto& [kind, scale, zero_point] : grids)
      values.push_back({static_cast<jit::PairGrid::Kind>(kind),
                        {static_cast<float>(scale), static_cast<int32_t>(zero_point)}});
    return jit::lower(module, values);
  });
}

}  // namespace

void bind_jit(py::module_& m) {
  m.def("jit_partition", &partition, py::arg("graph"), py::arg("options"), py::arg("inplace"),
        "Partitions a copy of the graph, or the graph itself, and returns it.");
  m.def(
      "jit_freeze",
      [](const Module& module) { return translated([&] { return jit::prepare_module(module); }); },
      py::arg("module"), "A frozen copy, conv-bn folded.");
  m.def(
      "jit_clone", [](const Module& module) { return module.clone(); }, py::arg("module"),
      "A copy with graphs and a type of its own; parameters are shared.");
  m.def("jit_strip", &jit::strip_annotations, py::arg("graph"), "Removes every annotation.");
  m.def(
      "jit_has_record", [](const GraphPtr& graph) { return jit::has_record(*graph); },
      py::arg("graph"), "Whether the graph holds the record of a partition.");
  m.def(
      "jit_read_record",
      [](const GraphPtr& graph) {
        return translated([&] { return to_python(jit::recorded_report(graph)); });
      },
      py::arg("graph"), "(options, rows) of the partition.");
  m.def("jit_write_record", &write_record, py::arg("graph"), py::arg("report"),
        "Records (options, rows) of a partition.");
  m.def(
      "jit_report_text",
      [](const GraphPtr& graph) {
        return translated([&] { return jit::recorded_report(graph).str(); });
      },
      py::arg("graph"), "The report as a table.");
  m.def("jit_groups", &groups, py::arg("graph"),
        "[(anchor, nodes, entries, exits, graph)] of a partitioned graph.");
  m.def("jit_as_module", &jit::as_module, py::arg("graph"), py::arg("name"),
        "A module with the graph as its forward.");
  m.def(
      "jit_delegate",
      [](const Module& module, const std::vector<Module>& modules) {
        return translated([&] { return jit::delegate(module, modules); });
      },
      py::arg("module"), py::arg("modules"), "A copy that calls a module for each group.");
  m.def(
      "jit_add_observers",
      [](const Module& module, int64_t preset) {
        return translated([&] { return jit::add_observers(module, preset); });
      },
      py::arg("module"), py::arg("preset"), "A copy that observes the range of every pair.");
  m.def("jit_known_grids", &known_grids, py::arg("module"),
        "[(kind, scale, stored zero point)] of every pair: 0 unknown, 1 fixed, 2 float.");
  m.def("jit_lower", &lower, py::arg("module"), py::arg("grids"),
        "A copy whose groups run on codes; grids as of jit_known_grids.");
  m.def("jit_dump_relay", &jit::dump_relay, py::arg("graph"), "The graph in Relay's names.");
  m.def(
      "moves_elements",
      [] {
        std::vector<std::string> names;
        for (const jit::OpSupport& row : jit::op_support()) {
          const std::string name = row.name;
          const bool moves = row.keeps_grid && row.role == jit::Role::kOther;
          if (moves) names.push_back(name.substr(name.find("::") + 2));
        }
        return names;
      },
      "Operators whose results hold elements of their argument: they keep its grid.");
}

}  // namespace horizon::bindings
