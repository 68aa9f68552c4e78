#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <type_traits>

#include "nn/float_functional.h"
#include "nn/layer.h"

namespace horizon::nn {

/// What a Slot and the module that owns it share: the child and how to call it.
struct SlotCell {
  using Call = std::function<at::Tensor(const at::Tensor&)>;

  std::shared_ptr<torch::nn::Module> module;
  Call call;
  /// How to call another module of the child's first type.
  std::function<Call(const std::shared_ptr<torch::nn::Module>&)> recall;

  /// Puts `layer` or a clone of the child in place.
  void set(std::shared_ptr<torch::nn::Module> module);
};

/// A child of a module that fuse_modules, prepare and convert may replace: called as
/// `Tensor(Tensor)`, whatever stands there.
class Slot {
 public:
  Slot() = default;
  explicit Slot(std::shared_ptr<SlotCell> cell) : cell_(std::move(cell)) {}

  at::Tensor operator()(const at::Tensor& input) const;
  /// The call of a transposed convolution, fused or not, whose result shall have `output_size`.
  at::Tensor operator()(const at::Tensor& input, at::IntArrayRef output_size) const;
  /// The child as it is now.
  const std::shared_ptr<torch::nn::Module>& ptr() const;

 protected:
  std::shared_ptr<SlotCell> cell_;
};

/// The holder of a FloatFunctional, and of what fuse_modules, prepare and convert put in its place.
class FloatFunctional : public Slot {
 public:
  /// A new one.
  FloatFunctional();
  explicit FloatFunctional(std::shared_ptr<SlotCell> cell) : Slot(std::move(cell)) {}

  FloatFunctionalImpl* operator->() const;
};

/// The children of a module that may be replaced, by name.
class SlotOwner {
 public:
  virtual ~SlotOwner() = default;
  /// The slot of that name, or nullptr.
  SlotCell* find_slot(const std::string& name) const;

 protected:
  std::map<std::string, std::shared_ptr<SlotCell>> slots_;
};

/// The base of custom modules whose children can be fused, prepared and converted:
///
///   struct BlockImpl : horizon::nn::Fusable<BlockImpl> {
///     explicit BlockImpl(int64_t channels) : channels(channels) { reset(); }
///     void reset() override {
///       conv = slot("conv", torch::nn::Conv2d(...));
///       add = functional("add");
///     }
///     torch::Tensor forward(torch::Tensor x) { return add->add(conv(x), x); }
///     int64_t channels;
///     horizon::nn::Slot conv;
///     horizon::nn::FloatFunctional add;
///   };
///   TORCH_MODULE(Block);
///
/// As in torch::nn::Cloneable, `reset` registers every child and parameter, so that `clone` works.
template <class Derived>
class Fusable : public torch::nn::Cloneable<Derived>, public SlotOwner {
 public:
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override {
    // torch's clone wants the children that reset() makes to be of the original's types: children
    // in slots are left out of it and cloned one by one.
    auto bare = std::make_shared<Derived>(static_cast<const Derived&>(*this));
    Fusable& stripped = *bare;
    stripped.cloning_ = true;
    for (const auto& [name, cell] : this->slots_) stripped.unregister_module(name);
    stripped.slots_.clear();  // or a reset() without slots would leave the original's
    auto copy =
        std::dynamic_pointer_cast<Derived>(bare->torch::nn::Cloneable<Derived>::clone(device));
    Fusable& target = *copy;
    target.cloning_ = false;
    for (const auto& child : this->named_children()) {
      if (this->find_slot(child.key()) == nullptr) continue;
      SlotCell* own = target.find_slot(child.key());
      TORCH_CHECK_VALUE(own != nullptr, "clone: reset() of ", class_name_of(*this),
                        " must register '", child.key(),
                        "', got no such slot: call slot() and functional() in reset(), and "
                        "reset() in the constructor");
      own->set(child.value()->clone(device));
      target.register_module(child.key(), own->module);
    }
    return copy;
  }

 protected:
  /// Registers a child as a slot: a module, holder or Sequential that maps a tensor to a tensor.
  template <class Module>
  Slot slot(const std::string& name, torch::nn::ModuleHolder<Module> holder) {
    return slot(name, holder.ptr());
  }
  template <class Module>
  Slot slot(const std::string& name, std::shared_ptr<Module> module) {
    TORCH_CHECK_VALUE(module != nullptr, "slot: 'module' must be a module, got null for '", name,
                      "'");
    auto cell = std::make_shared<SlotCell>();
    cell->recall = [](const std::shared_ptr<torch::nn::Module>& other) -> SlotCell::Call {
      auto typed = std::dynamic_pointer_cast<Module>(other);
      TORCH_CHECK_TYPE(typed != nullptr, "a slot was given a ", other->name());
      if constexpr (std::is_base_of_v<torch::nn::SequentialImpl, Module>) {
        return
            [typed](const at::Tensor& x) { return typed->torch::nn::SequentialImpl::forward(x); };
      } else {
        return [any = torch::nn::AnyModule(typed)](const at::Tensor& x) mutable {
          return any.forward(x);
        };
      }
    };
    cell->set(module);
    return Slot(own(name, std::move(cell)));
  }

  /// Registers a FloatFunctional.
  FloatFunctional functional(const std::string& name) {
    auto cell = std::make_shared<SlotCell>();
    cell->set(std::make_shared<FloatFunctionalImpl>());
    return FloatFunctional(own(name, std::move(cell)));
  }

 private:
  std::shared_ptr<SlotCell> own(const std::string& name, std::shared_ptr<SlotCell> cell) {
    if (!cloning_) this->register_module(name, cell->module);
    this->slots_[name] = cell;
    return cell;
  }

  bool cloning_ = false;
};

/// A Sequential that can stand in another Sequential, and whose clone is one as well.
class SequentialImpl : public torch::nn::SequentialImpl {
 public:
  using torch::nn::SequentialImpl::SequentialImpl;

  at::Tensor forward(const at::Tensor& input) { return torch::nn::SequentialImpl::forward(input); }
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;
};

class Sequential : public torch::nn::ModuleHolder<SequentialImpl> {
 public:
  using torch::nn::ModuleHolder<SequentialImpl>::ModuleHolder;
  Sequential() = default;
  Sequential(std::initializer_list<torch::nn::NamedAnyModule> named_modules)
      : ModuleHolder(std::make_shared<SequentialImpl>(named_modules)) {}
};

}  // namespace horizon::nn
