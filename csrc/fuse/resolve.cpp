#include "fuse/resolve.h"

#include <algorithm>
#include <cctype>

#include "fuse/planner.h"
#include "fuse/text.h"

namespace horizon::fuse {
namespace {

bool is_negative_subscript(const std::string& name) {
  return name.size() > 1 && name.front() == '-' &&
         std::all_of(name.begin() + 1, name.end(),
                     [](unsigned char c) { return std::isdigit(c) != 0; });
}

}  // namespace

const Resolver::Index& Resolver::children_of(int node) {
  auto [it, inserted] = indices_.try_emplace(node);
  if (inserted) {
    const Node& parent = tree_.nodes[static_cast<std::size_t>(node)];
    it->second.reserve(parent.children.size());
    for (std::size_t i = 0; i < parent.children.size(); ++i) {
      it->second.emplace(parent.child_names[i], parent.children[i]);
    }
  }
  return it->second;
}

void Resolver::refuse_wrapper(int node, const std::string& path) const {
  const Node& wrapper = tree_.nodes[static_cast<std::size_t>(node)];
  if (wrapper.inner.empty()) return;
  const std::string where = path.empty() ? "the model" : quoted(path);
  const std::string expression = path.empty() ? "model" : "model." + path;
  throw PlanError(ErrorKind::kValue, "fuse_modules: " + where + " is wrapped in " +
                                         wrapper.class_name + ": pass the inner module, " +
                                         expression + "." + wrapper.inner +
                                         ", with names that start there");
}

void Resolver::refuse_name(const std::string& path, const std::string& parent_path, int parent,
                           const std::string& name) const {
  const Node& node = tree_.nodes[static_cast<std::size_t>(parent)];
  const std::string where =
      (parent_path.empty() ? "the model" : quoted(parent_path)) + " (" + node.class_name + ")";
  std::string text = "fuse_modules: " + quoted(path) + " must name a module, but ";
  if (is_negative_subscript(name)) {
    text += "negative subscripts are not supported";
    if (!node.children.empty()) {
      text += ": the last child of " + where + " is " + quoted(node.child_names.back());
    }
  } else if (node.children.empty()) {
    text += where + " has no child " + quoted(name) + ", nor any other";
  } else {
    std::vector<std::string> children;
    for (const std::string& child : node.child_names) children.push_back(printable(child));
    text += where + " has no child " + quoted(name) + "; its children are " + joined(children);
  }
  throw PlanError(ErrorKind::kValue,
                  text +
                      ". Functional ops (F.relu, +) have no name and cannot be fused: use "
                      "modules (ReLU, FloatFunctional)");
}

int Resolver::resolve(const std::string& path) {
  int node = 0;
  std::size_t begin = 0;
  while (true) {
    const std::string parent_path = path.substr(0, begin == 0 ? 0 : begin - 1);
    refuse_wrapper(node, parent_path);
    const std::size_t end = std::min(path.find('.', begin), path.size());
    const std::string name = path.substr(begin, end - begin);
    const Index& children = children_of(node);
    const auto child = children.find(name);
    if (child == children.end()) refuse_name(path, parent_path, node, name);
    node = child->second;
    if (end == path.size()) return node;
    begin = end + 1;
  }
}

}  // namespace horizon::fuse
