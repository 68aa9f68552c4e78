#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <vector>

#include "bindings/bindings.h"
#include "fuse/planner.h"

namespace py = pybind11;

namespace horizon::bindings {
namespace {

using Names = std::vector<std::string>;

py::tuple to_python(const fuse::Variant& variant) {
  return py::make_tuple(static_cast<int>(variant.base), variant.batch_norm, variant.add,
                        static_cast<int>(variant.activation));
}

// [(kinds, (base, batch norm, add, activation), class name)]
py::list pattern_table() {
  py::list table;
  for (const fuse::Pattern& pattern : fuse::patterns()) {
    py::tuple kinds(pattern.kinds.size());
    for (std::size_t i = 0; i < pattern.kinds.size(); ++i) {
      kinds[i] = std::string(fuse::kind_name(pattern.kinds[i]));
    }
    table.append(
        py::make_tuple(kinds, to_python(pattern.variant), fuse::class_name(pattern.variant)));
  }
  return table;
}

// The fields of a node, in the order of horizon_plugin/quantization/_module_tree.py.
fuse::Node to_node(const py::tuple& fields) {
  fuse::Node node;
  std::size_t i = 0;
  const auto next = [&] { return fields[i++]; };
  node.class_name = next().cast<std::string>();
  node.kind = fuse::kind_from_name(next().cast<std::string>());
  node.derived_from = fuse::kind_from_name(next().cast<std::string>());
  node.type_id = next().cast<int>();
  node.training = next().cast<bool>();
  node.has_statistics = next().cast<bool>();
  node.channels = next().cast<int>();
  node.has_pre_hooks = next().cast<bool>();
  node.has_forward_hooks = next().cast<bool>();
  node.has_other_hooks = next().cast<bool>();
  node.qconfig = next().cast<int>();
  node.parent = next().cast<int>();
  node.group = next().cast<int>();
  node.position = next().cast<int>();
  node.obstacle = next().cast<std::string>();
  node.inner = next().cast<std::string>();
  node.child_names = next().cast<Names>();
  node.children = next().cast<std::vector<int>>();
  return node;
}

fuse::BatchNormMode to_mode(const std::string& name) {
  if (name == "fuse_bn") return fuse::BatchNormMode::kFuse;
  return name == "auto" ? fuse::BatchNormMode::kAuto : fuse::BatchNormMode::kKeep;
}

const char* action_name(fuse::Action action) {
  switch (action) {
    case fuse::Action::kLive:
      return "live";
    case fuse::Action::kFrozen:
      return "frozen";
    case fuse::Action::kFold:
      return "fold";
    default:
      return "";
  }
}

[[noreturn]] void raise(const fuse::PlanError& error) {
  PyObject* type = error.kind() == fuse::ErrorKind::kType             ? PyExc_TypeError
                   : error.kind() == fuse::ErrorKind::kNotImplemented ? PyExc_NotImplementedError
                                                                      : PyExc_ValueError;
  PyErr_SetString(type, error.what());
  throw py::error_already_set();
}

// ([(members, names, custom, variant, action, slot, qconfig)], warnings)
py::tuple plan_fusion(const py::list& nodes, const std::vector<Names>& groups,
                      const std::vector<Names>& lists, const std::string& mode,
                      bool allow_inner_hooks, bool match_patterns,
                      const std::vector<std::vector<int>>& custom_patterns) {
  fuse::Tree tree;
  tree.groups = groups;
  tree.nodes.reserve(nodes.size());
  for (const auto& node : nodes) tree.nodes.push_back(to_node(node.cast<py::tuple>()));
  fuse::Plan plan;
  try {
    plan = fuse::plan(tree, lists,
                      {to_mode(mode), allow_inner_hooks, match_patterns, custom_patterns});
  } catch (const fuse::PlanError& error) {
    raise(error);
  }
  py::list result;
  for (const fuse::Group& group : plan.groups) {
    result.append(py::make_tuple(group.members, group.names, group.custom, to_python(group.variant),
                                 action_name(group.action), group.slot, group.qconfig));
  }
  return py::make_tuple(result, plan.warnings);
}

}  // namespace

void bind_fuse(py::module_& m) {
  m.def("fusion_patterns", &pattern_table, "The pattern table of fuse_modules.");
  m.def("plan_fusion", &plan_fusion, py::arg("nodes"), py::arg("groups"), py::arg("lists"),
        py::arg("mode"), py::arg("allow_inner_hooks"), py::arg("match_patterns"),
        py::arg("custom_patterns"), "Resolves and checks lists of names; changes nothing.");
}

}  // namespace horizon::bindings
