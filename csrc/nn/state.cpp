#include "nn/state.h"

#include <ATen/core/ivalue.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <type_traits>
#include <vector>

#include "fuse/text.h"
#include "nn/places.h"
#include "ops/checks.h"

namespace horizon {
namespace {

/// Calls `visit` with the prefix of each layer's tensors; the model itself need not be owned by a
/// pointer.
template <class Model, class Visit>
void for_each_layer(Model& model, const Visit& visit) {
  using Layer = std::conditional_t<std::is_const_v<Model>, const nn::Layer, nn::Layer>;
  for (const auto& entry : model.named_modules("", /*include_self=*/false)) {
    if (Layer* layer = dynamic_cast<Layer*>(entry.value().get())) visit(entry.key() + ".", *layer);
  }
  if (Layer* layer = dynamic_cast<Layer*>(&model)) visit("", *layer);
}

}  // namespace

std::map<std::string, at::Tensor> state_dict(const torch::nn::Module& model) {
  nn::refuse_null_children("state_dict", model);
  std::map<std::string, at::Tensor> state;
  for (const auto& entry : model.named_parameters()) state[entry.key()] = entry.value();
  for (const auto& entry : model.named_buffers()) state[entry.key()] = entry.value();
  for_each_layer(model, [&](const std::string& prefix, const nn::Layer& layer) {
    layer.save_state(prefix, state);
  });
  std::erase_if(state, [](const auto& entry) { return !entry.second.defined(); });
  return state;
}

void load_state_dict(torch::nn::Module& model, const std::map<std::string, at::Tensor>& state) {
  std::map<std::string, at::Tensor> own = state_dict(model);
  std::vector<std::string> missing, unexpected;
  for (const auto& [key, tensor] : own) {
    if (!state.contains(key)) missing.push_back(key);
  }
  for (const auto& [key, tensor] : state) {
    if (!own.contains(key)) unexpected.push_back(key);
  }
  TORCH_CHECK_VALUE(missing.empty() && unexpected.empty(),
                    "load_state_dict: 'state' must have the model's keys, got missing: [",
                    fuse::joined(missing), "], unexpected: [", fuse::joined(unexpected), "]");
  for (const auto& [key, tensor] : own) {
    const at::Tensor& given = state.at(key);
    TORCH_CHECK_VALUE(given.sizes() == tensor.sizes(), "load_state_dict: '", key,
                      "' must have shape ", ops::shape_text(tensor), ", got ",
                      ops::shape_text(given));
    const bool same_kind =
        given.scalar_type() == tensor.scalar_type() ||
        (ops::is_float(given.scalar_type()) && ops::is_float(tensor.scalar_type()));
    TORCH_CHECK_VALUE(same_kind, "load_state_dict: '", key, "' must be ",
                      ops::dtype_text(tensor.scalar_type()), ", got ",
                      ops::dtype_text(given.scalar_type()), ": a state of another stage");
  }
  const torch::NoGradGuard no_grad;
  for (auto& [key, tensor] : own) tensor.copy_(state.at(key));
  for_each_layer(
      model, [&](const std::string& prefix, nn::Layer& layer) { layer.load_state(prefix, state); });
}

std::map<std::string, at::Tensor> to_state(const c10::IValue& dict) {
  TORCH_CHECK_TYPE(dict.isGenericDict(), "to_state: 'dict' must be a dict, got ", dict.tagKind());
  std::map<std::string, at::Tensor> state;
  for (const auto& entry : dict.toGenericDict()) {
    TORCH_CHECK_TYPE(entry.key().isString() && entry.value().isTensor(),
                     "to_state: 'dict' must lead from strings to tensors, got ",
                     entry.key().tagKind(), " to ", entry.value().tagKind());
    state[entry.key().toStringRef()] = entry.value().toTensor();
  }
  return state;
}

namespace nn {

void take_place(Layer& target, const Layer& source) {
  target.path = source.path;
  target.group = source.group;
  target.position = source.position;
}

std::tuple<at::Tensor, at::Tensor> register_grid(torch::nn::Module& module) {
  const at::Tensor scale = module.register_buffer("scale", at::ones({}, at::kFloat));
  return {scale, module.register_buffer("zero_point", at::zeros({}, at::kInt))};
}

void set_grid(const FakeQuantizeImpl& quantizer, at::Tensor& scale, at::Tensor& zero_point) {
  const auto [s, z] = quantizer.grid();
  scale.set_data(s);
  zero_point.set_data(z);
}

}  // namespace nn
}  // namespace horizon
