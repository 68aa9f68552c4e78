#pragma once

#include <ATen/core/Dict.h>

#include <map>
#include <string>
#include <tuple>

#include "nn/fake_quantize.h"
#include "nn/layer.h"

namespace horizon {

/// The parameters and buffers of a model by name, with the names that Python's state_dict has.
std::map<std::string, at::Tensor> state_dict(const torch::nn::Module& model);

/// Copies a state into a model of the same stage. Throws ValueError naming keys that are missing or
/// left over, and shapes or dtypes that differ (codes are never converted to floats or back); then
/// nothing is changed.
///
/// A file of Python's `torch.save({k: v for k, v in model.state_dict().items()}, path)` is read by
/// torch::pickle_load; `to_state` makes a state of it.
void load_state_dict(torch::nn::Module& model, const std::map<std::string, at::Tensor>& state);

/// A state from a dict of strings to tensors.
std::map<std::string, at::Tensor> to_state(const c10::IValue& dict);

namespace nn {

/// Gives `target` the path and group of the layer that it replaces.
void take_place(Layer& target, const Layer& source);

/// Sets `pointer` to the child of that name.
template <class Child>
void find_child(const torch::nn::Module& module, const std::string& name,
                std::shared_ptr<Child>& pointer) {
  const auto children = module.named_children();
  pointer = std::dynamic_pointer_cast<Child>(children[name]);
}

/// Registers the output grid of a converted module: "scale" and stored "zero_point".
std::tuple<at::Tensor, at::Tensor> register_grid(torch::nn::Module& module);

/// Copies a quantizer's grid into the buffers of `register_grid`.
void set_grid(const FakeQuantizeImpl& quantizer, at::Tensor& scale, at::Tensor& zero_point);

}  // namespace nn
}  // namespace horizon
