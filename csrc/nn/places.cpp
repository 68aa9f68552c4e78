#include "nn/places.h"

#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>

#include <algorithm>
#include <unordered_set>

#include "nn/slot.h"

namespace horizon::nn {
namespace {

// The holder of a Sequential, its second table, for one of its children.
torch::nn::AnyModule* find_any(torch::nn::SequentialImpl& sequential, const std::string& name,
                               const torch::nn::Module* child) {
  std::size_t position = 0;
  for (const auto& entry : sequential.named_children()) {
    if (entry.key() == name) break;
    ++position;
  }
  if (position >= sequential.size()) return nullptr;
  torch::nn::AnyModule& any = *(sequential.begin() + static_cast<std::ptrdiff_t>(position));
  return any.ptr().get() == child ? &any : nullptr;
}

}  // namespace

std::vector<Place> places_of(torch::nn::Module& model) {
  std::vector<Place> places;
  std::unordered_set<const torch::nn::Module*> seen{&model};
  std::vector<std::pair<torch::nn::Module*, std::string>> queue{{&model, ""}};
  for (std::size_t i = 0; i < queue.size(); ++i) {
    const auto [parent, path] = queue[i];
    for (const auto& entry : parent->named_children()) {
      if (entry.value() == nullptr) continue;
      Place place{parent, path, entry.key(), entry.value()};
      const bool inside = dynamic_cast<const Layer*>(place.child.get()) == nullptr;
      if (seen.insert(place.child.get()).second && inside) {
        queue.emplace_back(place.child.get(), place.path());
      }
      places.push_back(std::move(place));
    }
  }
  return places;
}

void refuse_null_children(const char* op, const torch::nn::Module& model) {
  for (const auto& entry : model.named_children()) {
    TORCH_CHECK_VALUE(entry.value() != nullptr, op, ": '", entry.key(), "' of ",
                      class_name_of(model), " must be a module, got null: leave it unregistered");
    refuse_null_children(op, *entry.value());
  }
}

bool is_inference_model(const torch::nn::Module& model) {
  const auto is_inference = [](const at::Tensor& t) { return t.defined() && t.is_inference(); };
  if (std::ranges::any_of(model.parameters(/*recurse=*/false), is_inference)) return true;
  return std::ranges::any_of(model.children(), [](const auto& child) {
    return child != nullptr && is_inference_model(*child);
  });
}

std::string replace_obstacle(const Place& place) {
  torch::nn::Module& parent = *place.parent;
  if (dynamic_cast<torch::nn::ModuleListImpl*>(&parent) != nullptr ||
      dynamic_cast<torch::nn::ModuleDictImpl*>(&parent) != nullptr) {
    return {};
  }
  if (auto* sequential = dynamic_cast<torch::nn::SequentialImpl*>(&parent)) {
    if (find_any(*sequential, place.name, place.child.get()) != nullptr) return {};
  }
  if (const auto* owner = dynamic_cast<const SlotOwner*>(&parent)) {
    const SlotCell* cell = owner->find_slot(place.name);
    if (cell != nullptr && cell->module == place.child) return {};
  }
  const std::string where = place.parent_path.empty() ? "the model" : "'" + place.parent_path + "'";
  return "must stand in a Sequential, ModuleList, ModuleDict or slot, but " + where + " (" +
         class_name_of(parent) + ") holds it in a member that cannot be replaced: derive " +
         class_name_of(parent) +
         " from horizon::nn::Fusable and register the member by slot() or functional()";
}

void replace(const Place& place, const std::shared_ptr<Layer>& layer) {
  torch::nn::Module& parent = *place.parent;
  if (auto* sequential = dynamic_cast<torch::nn::SequentialImpl*>(&parent)) {
    if (auto* any = find_any(*sequential, place.name, place.child.get())) *any = layer->any();
  }
  if (auto* list = dynamic_cast<torch::nn::ModuleListImpl*>(&parent)) {
    std::size_t position = 0;
    for (const auto& entry : parent.named_children()) {
      if (entry.key() == place.name) break;
      ++position;
    }
    *(list->begin() + static_cast<std::ptrdiff_t>(position)) = layer;
  }
  if (auto* dict = dynamic_cast<torch::nn::ModuleDictImpl*>(&parent)) {
    for (auto& entry : *dict) {
      if (entry.key() == place.name) entry.value() = layer;
    }
  }
  if (const auto* owner = dynamic_cast<const SlotOwner*>(&parent)) {
    if (SlotCell* cell = owner->find_slot(place.name)) cell->set(layer);
  }
  parent.replace_module(place.name, std::static_pointer_cast<torch::nn::Module>(layer));
}

}  // namespace horizon::nn
