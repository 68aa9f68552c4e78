#pragma once

#include <memory>
#include <string>
#include <vector>

namespace torch::jit {
struct Graph;
struct Module;
struct Node;
struct Value;
}  // namespace torch::jit

namespace horizon::jit {

/// One quantizable group of a partitioned graph; the pointers live as long as the graph.
struct Group {
  torch::jit::Node* anchor = nullptr;       ///< the convolution; none where an add or mul begins
  std::vector<torch::jit::Node*> nodes;     ///< in the order of execution
  std::vector<torch::jit::Value*> entries;  ///< what it reads: pairs, then whatever is no constant
  std::vector<torch::jit::Value*> exits;    ///< what others read
};

/// The groups of a partitioned graph, blocks included, in the order of execution.
///
/// RuntimeError where `graph` was not partitioned.
std::vector<Group> groups(const std::shared_ptr<torch::jit::Graph>& graph);

/// The group as a graph of its own: entries in, exits out (a tuple unless there is one).
std::shared_ptr<torch::jit::Graph> extract(const Group& group);

/// A module with the graph as its `forward`.
torch::jit::Module as_module(const std::shared_ptr<torch::jit::Graph>& graph,
                             const std::string& name);

/// A copy of `module` in which group i is a call of `modules[i]`, its submodule `group_<i>`.
///
/// The modules take the entries of their group and return its exits, as `extract` does. A group
/// whose nodes write in place stays as it is.
torch::jit::Module delegate(const torch::jit::Module& module,
                            const std::vector<torch::jit::Module>& modules);

}  // namespace horizon::jit
