#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/any.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace horizon::nn {

struct FusedGroup;

/// A module of this library: it can stand in any slot, in a Sequential as well.
class Layer : public torch::nn::Module {
 public:
  using torch::nn::Module::Module;

  virtual at::Tensor forward(const at::Tensor& input) = 0;
  /// The same for a transposed convolution whose result shall have `output_size`: [H, W] or the
  /// whole shape. Throws ValueError for other layers.
  virtual at::Tensor forward_sized(const at::Tensor& input, at::IntArrayRef output_size);

  /// This module as a Sequential holds it.
  virtual torch::nn::AnyModule any() = 0;

  /// Puts the tensors below `prefix` that the module holds in another form than it saves into
  /// `state`, in place of that form.
  virtual void save_state(const std::string& /*prefix*/,
                          std::map<std::string, at::Tensor>& /*state*/) const {}
  /// Takes those tensors from `state`, whose names, shapes and dtypes have been checked.
  virtual void load_state(const std::string& /*prefix*/,
                          const std::map<std::string, at::Tensor>& /*state*/) {}

  /// The module's name in its model, for messages.
  std::string path;
  /// The fused group that the module belongs to, and its place there.
  std::shared_ptr<const FusedGroup> group;
  int position = -1;

 protected:
  /// Finds children again after they were replaced by their clones.
  virtual void rebind() {}

  /// Copies tensors and children (as clones) of `from`, a module of the same structure.
  void copy_state(const Layer& from, const std::optional<torch::Device>& device);
};

/// What every concrete layer shares. `Derived` has `std::shared_ptr<Derived> blank() const`: a
/// module of the same structure and settings.
template <class Derived, class Base = Layer>
class LayerOf : public Base {
 public:
  using Base::Base;

  torch::nn::AnyModule any() override { return torch::nn::AnyModule(self()); }

  /// A deep copy; the group's modules in a copy recognize each other.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override {
    std::shared_ptr<Derived> copy = static_cast<const Derived&>(*this).blank();
    static_cast<LayerOf&>(*copy).copy_state(*this, device);
    return copy;
  }

 private:
  std::shared_ptr<Derived> self() {
    return std::dynamic_pointer_cast<Derived>(this->shared_from_this());
  }

  // What a parent's clone calls on the modules that its reset() made.
  void clone_(torch::nn::Module& other, const std::optional<torch::Device>& device) override {
    const auto copy = std::dynamic_pointer_cast<Derived>(other.clone(device));
    TORCH_CHECK_VALUE(copy != nullptr, "clone: '", this->path, "' must be a ", this->name(),
                      ", got a ", other.name());
    static_cast<Derived&>(*this) = *copy;
  }
};

/// Keeps the dtypes of ranges, scales and integer constants when a model changes its own:
/// `to(dtype)` of such a module moves nothing.
template <class Base>
class FixedDtypes : public Base {
 public:
  using Base::Base;

  void to(torch::Device device, torch::Dtype /*dtype*/, bool non_blocking = false) override {
    Base::to(device, non_blocking);
  }
  void to(torch::Dtype /*dtype*/, bool /*non_blocking*/ = false) override {}
  void to(torch::Device device, bool non_blocking = false) override {
    Base::to(device, non_blocking);
  }
};

/// Calls `run` and puts the module's path in front of what it throws.
template <class Run>
auto named(const std::string& path, Run&& run) -> decltype(run());

[[noreturn]] void rethrow_named(const std::string& path);

template <class Run>
auto named(const std::string& path, Run&& run) -> decltype(run()) {
  try {
    return std::forward<Run>(run)();
  } catch (...) {
    rethrow_named(path);
  }
}

/// Throws TypeError in the name of `path` for an undefined operand.
void check_defined(const at::Tensor& x, const std::string& path, const char* operand = "input");

/// Calls any module that maps one tensor to one: layers of this library, Sequential, and what can
/// be a member of a fused group. For children of a ModuleList or ModuleDict, whose types fusing
/// changes. Throws TypeError for others.
at::Tensor call(torch::nn::Module& module, const at::Tensor& input);
/// The same with the size of the result, for a transposed convolution, fused or not.
at::Tensor call(torch::nn::Module& module, const at::Tensor& input, at::IntArrayRef output_size);

/// "Conv2d" for torch::nn::Conv2dImpl: the name of a module's class as messages spell it.
std::string class_name_of(const torch::nn::Module& module);

}  // namespace horizon::nn
