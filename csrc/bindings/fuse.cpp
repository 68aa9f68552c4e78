#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "fuse/discover.h"
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
  for (const std::string& kind : next().cast<Names>()) {
    node.fused.push_back(fuse::kind_from_name(kind));
  }
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

fuse::Tree to_tree(const py::list& nodes, const std::vector<Names>& groups) {
  fuse::Tree tree;
  tree.groups = groups;
  tree.nodes.reserve(nodes.size());
  for (const auto& node : nodes) tree.nodes.push_back(to_node(node.cast<py::tuple>()));
  return tree;
}

// (calls, values, results, kept), in the order of horizon_plugin/quantization/_call_record.py.
fuse::Record to_record(const py::tuple& fields) {
  using Numbers = std::vector<int>;
  fuse::Record record;
  for (const auto& item : fields[0].cast<py::list>()) {
    const auto call = item.cast<py::tuple>();
    record.calls.push_back({call[0].cast<int>(), call[1].cast<std::string>(), call[2].cast<int>(),
                            call[3].cast<Numbers>(), call[4].cast<Numbers>(),
                            call[5].cast<Numbers>(), call[6].cast<bool>()});
  }
  for (const auto& item : fields[1].cast<py::list>()) {
    const auto value = item.cast<py::tuple>();
    record.values.push_back({value[0].cast<int>(), value[1].cast<int>()});
  }
  record.results = fields[2].cast<Numbers>();
  record.kept = fields[3].cast<Numbers>();
  return record;
}

py::list to_python(const std::vector<fuse::Group>& groups) {
  py::list result;
  for (const fuse::Group& group : groups) {
    result.append(py::make_tuple(group.members, group.names, group.custom, to_python(group.variant),
                                 action_name(group.action), group.slot, group.qconfig));
  }
  return result;
}

// ([(members, names, custom, variant, action, slot, qconfig)], warnings)
py::tuple plan_fusion(const py::list& nodes, const std::vector<Names>& groups,
                      const std::vector<Names>& lists, const std::string& mode,
                      bool allow_inner_hooks, bool match_patterns,
                      const std::vector<std::vector<int>>& custom_patterns) {
  try {
    const fuse::Plan plan =
        fuse::plan(to_tree(nodes, groups), lists,
                   {to_mode(mode), allow_inner_hooks, match_patterns, custom_patterns});
    return py::make_tuple(to_python(plan.groups), plan.warnings);
  } catch (const fuse::PlanError& error) {
    raise(error);
  }
}

// (groups as of plan_fusion, hints, [(node, name, reason, blocked)])
py::tuple find_fusions(const py::list& nodes, const std::vector<Names>& groups,
                       const py::tuple& record, const std::string& mode, bool allow_inner_hooks,
                       const std::vector<std::vector<int>>& custom_patterns) {
  try {
    const fuse::Discovery found =
        fuse::find_groups(to_tree(nodes, groups), to_record(record),
                          {to_mode(mode), allow_inner_hooks, true, custom_patterns});
    py::list left;
    for (const fuse::LeftAlone& row : found.left) {
      left.append(py::make_tuple(row.node, row.name, row.reason, row.blocked));
    }
    return py::make_tuple(to_python(found.groups), found.hints, left);
  } catch (const fuse::PlanError& error) {
    raise(error);
  }
}

// Warnings; `planned` is [(members, names)].
Names check_fusions(const py::list& nodes, const std::vector<Names>& groups,
                    const py::tuple& record,
                    const std::vector<std::pair<std::vector<int>, Names>>& planned) {
  std::vector<fuse::Group> wanted;
  for (const auto& [members, names] : planned) {
    fuse::Group group;
    group.members = members;
    group.names = names;
    wanted.push_back(std::move(group));
  }
  Names warnings;
  try {
    fuse::check_groups(to_tree(nodes, groups), to_record(record), wanted, warnings);
  } catch (const fuse::PlanError& error) {
    raise(error);
  }
  return warnings;
}

}  // namespace

void bind_fuse(py::module_& m) {
  m.def("fusion_patterns", &pattern_table, "The pattern table of fuse_modules.");
  m.def("plan_fusion", &plan_fusion, py::arg("nodes"), py::arg("groups"), py::arg("lists"),
        py::arg("mode"), py::arg("allow_inner_hooks"), py::arg("match_patterns"),
        py::arg("custom_patterns"), "Resolves and checks lists of names; changes nothing.");
  m.def("find_fusions", &find_fusions, py::arg("nodes"), py::arg("groups"), py::arg("record"),
        py::arg("mode"), py::arg("allow_inner_hooks"), py::arg("custom_patterns"),
        "Finds the groups that are safe to fuse, by a record of calls.");
  m.def("check_fusions", &check_fusions, py::arg("nodes"), py::arg("groups"), py::arg("record"),
        py::arg("planned"), "Refuses planned groups that a record of calls shows to be unsafe.");
}

}  // namespace horizon::bindings
