#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

#include "nn/layer.h"

namespace horizon::nn {

/// A place where a module stands.
struct Place {
  torch::nn::Module* parent = nullptr;
  std::string parent_path;
  std::string name;
  std::shared_ptr<torch::nn::Module> child;

  std::string path() const { return parent_path.empty() ? name : parent_path + "." + name; }
};

/// Every place in a model, parents before children; a module under two names has two. The insides
/// of this library's layers are left out.
std::vector<Place> places_of(torch::nn::Module& model);

/// Throws ValueError in the name of `op` for a null child, which torch's own traversals would
/// follow.
void refuse_null_children(const char* op, const torch::nn::Module& model);

/// Whether the model was built in inference mode. Its replacements must be as well, and only then:
/// such tensors can never be trained.
bool is_inference_model(const torch::nn::Module& model);

/// Why the child of `place` cannot be replaced ("must stand in …"), with the remedy; empty if it
/// can.
std::string replace_obstacle(const Place& place);

/// Puts `layer` in place: in the parent's table of children and in what it calls them by. Cannot
/// fail where `replace_obstacle` is empty.
void replace(const Place& place, const std::shared_ptr<Layer>& layer);

}  // namespace horizon::nn
