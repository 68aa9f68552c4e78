#include "fuse/module_tree.h"

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <sstream>
#include <typeinfo>

#include "fuse/planner.h"
#include "fuse/text.h"
#include "nn/prepared.h"

namespace horizon::fuse {
namespace {

using torch::nn::Module;

/// A known class: kind, and the test for classes that derive from it.
struct KnownClass {
  Kind kind;
  bool (*exact)(const Module&);
  bool (*derived)(const Module&);
};

template <class Type>
constexpr KnownClass known(Kind kind) {
  return {kind, [](const Module& m) { return typeid(m) == typeid(Type); },
          [](const Module& m) { return dynamic_cast<const Type*>(&m) != nullptr; }};
}

const KnownClass kKnown[] = {
    known<torch::nn::Conv2dImpl>(Kind::kConv2d),
    known<torch::nn::ConvTranspose2dImpl>(Kind::kConvTranspose2d),
    known<torch::nn::LinearImpl>(Kind::kLinear),
    known<torch::nn::BatchNorm1dImpl>(Kind::kBatchNorm1d),
    known<torch::nn::BatchNorm2dImpl>(Kind::kBatchNorm2d),
    known<torch::nn::ReLUImpl>(Kind::kReLU),
    known<torch::nn::ReLU6Impl>(Kind::kReLU6),
    known<nn::FloatFunctionalImpl>(Kind::kFloatFunctional),
};

Kind kind_of(const Module& module) {
  const auto* found = std::ranges::find_if(kKnown, [&](const auto& k) { return k.exact(module); });
  if (found != std::end(kKnown)) return found->kind;
  const auto* tanh = dynamic_cast<const torch::nn::HardtanhImpl*>(&module);
  const bool is_relu6 = tanh != nullptr && typeid(module) == typeid(torch::nn::HardtanhImpl) &&
                        tanh->options.min_val() == 0 && tanh->options.max_val() == 6;
  return is_relu6 ? Kind::kReLU6 : Kind::kOther;
}

Kind derived_kind(const Module& module) {
  if (const auto* prepared = dynamic_cast<const nn::PreparedImpl*>(&module)) {
    return prepared->variant().base;
  }
  const auto* found =
      std::ranges::find_if(kKnown, [&](const auto& k) { return k.derived(module); });
  return found == std::end(kKnown) ? Kind::kOther : found->kind;
}

bool is_stateless(const Module& module) {
  return typeid(module) == typeid(torch::nn::ReLUImpl) ||
         typeid(module) == typeid(torch::nn::ReLU6Impl) ||
         typeid(module) == typeid(torch::nn::HardtanhImpl);
}

int channels_of(const Module& module) {
  const auto narrow = [](int64_t value) { return static_cast<int>(value); };
  if (nn::base_kind(module) != Kind::kOther) {
    return narrow(nn::describe_group(module, {}).out_channels);
  }
  if (const auto* bn = dynamic_cast<const torch::nn::BatchNorm2dImpl*>(&module)) {
    return narrow(bn->options.num_features());
  }
  if (const auto* bn = dynamic_cast<const torch::nn::BatchNorm1dImpl*>(&module)) {
    return narrow(bn->options.num_features());
  }
  return kNoIndex;
}

std::string label_of(const Module& module, Kind kind) {
  std::string name = nn::class_name_of(module);
  const auto* tanh = dynamic_cast<const torch::nn::HardtanhImpl*>(&module);
  if (tanh != nullptr && kind == Kind::kOther) {
    std::ostringstream bounds;
    bounds << '(' << tanh->options.min_val() << ", " << tanh->options.max_val() << ')';
    name += bounds.str();
  }
  return name;
}

}  // namespace

int ModuleTree::group_id(const std::shared_ptr<const nn::FusedGroup>& group) {
  const auto [it, inserted] =
      group_ids_.try_emplace(group.get(), static_cast<int>(tree.groups.size()));
  if (inserted) tree.groups.push_back(group->names);
  return it->second;
}

Node ModuleTree::make_node(const Module& module, int parent) {
  Node node;
  node.kind = kind_of(module);
  node.class_name = label_of(module, node.kind);
  node.derived_from = node.kind == Kind::kOther ? derived_kind(module) : Kind::kOther;
  node.training = module.is_training();
  node.channels = channels_of(module);
  node.parent = parent;
  if (node.kind == Kind::kBatchNorm1d || node.kind == Kind::kBatchNorm2d) {
    const nn::NormTensors norm = nn::norm_tensors(module);
    node.has_statistics = norm.running_mean.defined() && norm.running_var.defined();
  }
  if (const auto* layer = dynamic_cast<const nn::Layer*>(&module)) {
    if (layer->group != nullptr) {
      node.group = group_id(layer->group);
      node.position = layer->position;
    }
    const bool prepared = dynamic_cast<const nn::PreparedImpl*>(layer) != nullptr ||
                          dynamic_cast<const nn::PreparedFunctionalImpl*>(layer) != nullptr;
    if (prepared) node.obstacle = "is prepared already: call fuse_modules before prepare";
  }
  return node;
}

ModuleTree::ModuleTree(Module& model) {
  std::unordered_map<const Module*, int> index{{&model, 0}};
  std::vector<std::string> paths{""};
  modules.push_back(&model);
  slots.emplace_back();
  tree.nodes.push_back(make_node(model, kNoIndex));
  for (std::size_t position = 0; position < modules.size(); ++position) {
    Module& module = *modules[position];
    // The insides of this library's layers are not the user's modules.
    if (dynamic_cast<const nn::Layer*>(&module) != nullptr) continue;
    for (const auto& entry : module.named_children()) {
      const std::shared_ptr<Module>& child = entry.value();
      if (child == nullptr) continue;
      // A stateless activation is one node for every place: sharing the object shares nothing.
      const auto known_node = index.find(child.get());
      int node = known_node == index.end() || is_stateless(*child) ? kNoIndex : known_node->second;
      const nn::Place place{&module, paths[position], entry.key(), child};
      if (node == kNoIndex) {
        node = static_cast<int>(modules.size());
        index[child.get()] = node;
        modules.push_back(child.get());
        paths.push_back(place.path());
        slots.emplace_back();
        tree.nodes.push_back(make_node(*child, static_cast<int>(position)));
      }
      slots[static_cast<std::size_t>(node)].push_back(place);
      Node& taken = tree.nodes[static_cast<std::size_t>(node)];
      if (taken.kind != Kind::kOther && taken.obstacle.empty()) {
        taken.obstacle = nn::replace_obstacle(place);
      }
      tree.nodes[position].child_names.push_back(entry.key());
      tree.nodes[position].children.push_back(node);
    }
  }
}

std::vector<nn::Place> ModuleTree::places_of(int node, int base) const {
  const Module* module = modules[static_cast<std::size_t>(node)];
  const std::vector<nn::Place>& own = slots[static_cast<std::size_t>(node)];
  std::vector<nn::Place> places = own;
  if (!is_stateless(*module)) return places;
  for (const nn::Place& beside : slots[static_cast<std::size_t>(base)]) {
    const bool counted = std::ranges::any_of(
        own, [&](const nn::Place& place) { return place.parent == beside.parent; });
    if (counted) continue;
    for (const auto& entry : beside.parent->named_children()) {
      if (entry.value().get() == module) {
        places.push_back({beside.parent, beside.parent_path, entry.key(), entry.value()});
      }
    }
  }
  return places;
}

void ModuleTree::check_places(const std::vector<int>& members,
                              const std::vector<std::string>& names) const {
  const auto count = [&](int node) { return slots[static_cast<std::size_t>(node)].size(); };
  const auto lasting = [&](int node) {
    return !is_stateless(*modules[static_cast<std::size_t>(node)]);
  };
  const auto refuse = [&](std::size_t position, const nn::Place& place) {
    throw PlanError(ErrorKind::kValue,
                    "fuse_modules: " + quoted(names[position]) + " is also " +
                        quoted(place.path()) +
                        ", one module in two places, and the rest of its group is not there: give "
                        "each place a module of its own, or leave the group out");
  };
  std::size_t fewest = count(members[0]);
  for (const int node : members) {
    if (lasting(node)) fewest = std::min(fewest, count(node));
  }
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (lasting(members[i]) && count(members[i]) > fewest) {
      refuse(i, slots[static_cast<std::size_t>(members[i])].back());
    }
  }
  for (const int node : members) {
    if (fewest > 1 && places_of(node, members[0]).size() < fewest) {
      refuse(0, slots[static_cast<std::size_t>(members[0])].back());
    }
  }
}

}  // namespace horizon::fuse
