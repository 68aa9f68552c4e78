#include "fuse/torch_nn.h"

#include <unordered_map>
#include <utility>

#include "fuse/module_tree.h"
#include "fuse/text.h"
#include "nn/fused.h"
#include "nn/members.h"

namespace horizon {
namespace {

using LayerPointer = std::shared_ptr<nn::Layer>;
using ModulePointer = std::shared_ptr<torch::nn::Module>;

/// The base of a folded group: a module of its own, since the user's may be tied to others.
ModulePointer folded_base(const torch::nn::Module& base, const torch::nn::Module& bn) {
  auto [weight, bias] = nn::folded_tensors(base, bn);
  ModulePointer made = nn::blank_with_bias(base);
  auto [own_weight, own_bias] = nn::base_tensors(*made);
  own_weight.set_data(weight);
  own_bias.set_data(bias);
  own_weight.set_requires_grad(weight.requires_grad());
  own_bias.set_requires_grad(bias.requires_grad());
  return made;
}

/// The modules that replace a group's members.
std::vector<LayerPointer> build(const fuse::Group& group,
                                const std::vector<ModulePointer>& members) {
  auto token = std::make_shared<nn::FusedGroup>();
  token->names = group.names;
  token->add = group.variant.add ? static_cast<int>(group.slot) : -1;
  token->has_norm = group.variant.batch_norm;

  const bool folds = group.action == fuse::Action::kFold;
  fuse::Variant variant = group.variant;
  ModulePointer base = members[0];
  ModulePointer bn = variant.batch_norm ? members[1] : nullptr;
  if (folds) {
    base = folded_base(*base, *bn);
    variant.batch_norm = false;
    bn = nullptr;
  }
  std::vector<LayerPointer> layers;
  for (std::size_t i = 0; i < members.size(); ++i) {
    using Role = nn::PlaceholderRole;
    LayerPointer layer;
    if (i == group.slot) {
      layer =
          std::make_shared<nn::FusedImpl>(variant, base, bn, group.action == fuse::Action::kFrozen);
    } else {
      const Role role = !group.variant.add ? Role::kIdentity
                        : i == 0           ? Role::kBase
                        : i < group.slot   ? Role::kNorm
                                           : Role::kActivation;
      layer = std::make_shared<nn::PlaceholderImpl>(role);
      layer->train(members[i]->is_training());
    }
    layer->path = group.names[i];
    layer->group = token;
    layer->position = static_cast<int>(i);
    layers.push_back(std::move(layer));
  }
  return layers;
}

/// Warns of each group whose fold makes anew what a module outside shares with it.
void warn_of_ties(const fuse::ModuleTree& tree, const std::vector<fuse::Group>& groups) {
  std::unordered_multimap<const void*, std::pair<int, std::string>> holders;
  for (std::size_t node = 0; node < tree.modules.size(); ++node) {
    for (const auto& entry : tree.modules[node]->named_parameters(/*recurse=*/false)) {
      holders.emplace(entry.value().unsafeGetTensorImpl(),
                      std::pair(static_cast<int>(node), entry.key()));
    }
  }
  for (const fuse::Group& group : groups) {
    if (group.action != fuse::Action::kFold) continue;
    std::vector<std::string> ties;
    for (std::size_t i = 0; i < 2; ++i) {
      const torch::nn::Module& member = *tree.modules[static_cast<std::size_t>(group.members[i])];
      for (const auto& entry : member.named_parameters(/*recurse=*/false)) {
        const auto [begin, end] = holders.equal_range(entry.value().unsafeGetTensorImpl());
        for (auto holder = begin; holder != end; ++holder) {
          const auto& [node, name] = holder->second;
          if (node == group.members[0] || node == group.members[1]) continue;
          const auto& slots = tree.slots[static_cast<std::size_t>(node)];
          const std::string path = slots.empty() ? name : slots.front().path() + "." + name;
          ties.push_back(fuse::quoted(group.names[i] + "." + entry.key()) + " from " +
                         fuse::quoted(path));
        }
      }
    }
    if (ties.empty()) continue;
    TORCH_WARN("fuse_modules: folding ", fuse::list_text(group.names), " unties ",
               fuse::joined(ties),
               ": the folded layer gets parameters of its own, and the others stay as they are; "
               "BatchNormMode::kKeep keeps them tied");
  }
}

[[noreturn]] void rethrow(const fuse::PlanError& error) {
  switch (error.kind()) {
    case fuse::ErrorKind::kType:
      TORCH_CHECK_TYPE(false, error.what());
    case fuse::ErrorKind::kNotImplemented:
      TORCH_CHECK_NOT_IMPLEMENTED(false, error.what());
    default:
      TORCH_CHECK_VALUE(false, error.what());
  }
}

}  // namespace

void fuse_modules(torch::nn::Module& model,
                  const std::vector<std::vector<std::string>>& modules_to_fuse,
                  const FuseOptions& options) {
  using Mode = fuse::BatchNormMode;
  TORCH_CHECK_VALUE(
      options.mode == Mode::kAuto || options.mode == Mode::kFuse || options.mode == Mode::kKeep,
      "fuse_modules: 'mode' must be kAuto, kFuse or kKeep, got ", static_cast<int>(options.mode));
  const c10::InferenceMode mode(nn::is_inference_model(model));
  const fuse::ModuleTree tree(model);
  fuse::Plan plan;
  try {
    fuse::Options planner_options;
    planner_options.mode = options.mode;
    plan = fuse::plan(tree.tree, modules_to_fuse, planner_options);
    for (const fuse::Group& group : plan.groups) tree.check_places(group.members, group.names);
  } catch (const fuse::PlanError& error) {
    rethrow(error);
  }
  // Everything is built before the first slot is written.
  std::vector<std::pair<nn::Place, LayerPointer>> replacements;
  for (const fuse::Group& group : plan.groups) {
    std::vector<ModulePointer> members;
    for (const int node : group.members) {
      members.push_back(tree.slots[static_cast<std::size_t>(node)].front().child);
    }
    const std::vector<LayerPointer> layers = build(group, members);
    for (std::size_t i = 0; i < layers.size(); ++i) {
      for (const nn::Place& place : tree.places_of(group.members[i], group.members[0])) {
        replacements.emplace_back(place, layers[i]);
      }
    }
  }
  for (const std::string& warning : plan.warnings) TORCH_WARN(warning);
  warn_of_ties(tree, plan.groups);
  for (const auto& [place, layer] : replacements) nn::replace(place, layer);
}

}  // namespace horizon
