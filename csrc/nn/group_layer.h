#pragma once

#include "nn/float_functional.h"
#include "nn/group.h"
#include "nn/pending.h"

namespace horizon::nn {

/// What the fused family shares in every stage: how a group is called.
///
/// A group without an add is called by `forward`. One with an add stands in its FloatFunctional's
/// slot and is called by `add` or `add_relu`, either operand being the base's result as
/// fuse_modules left it; one that was built by hand is called by `run`.
class GroupLayer : public FloatFunctionalImpl {
 public:
  /// [N, C, H, W] or [C, H, W], for Linear [*, features] (2-D with a batch norm), to the same.
  /// Throws ValueError for a group with an add.
  at::Tensor forward(const at::Tensor& input) override;
  at::Tensor forward_sized(const at::Tensor& input, at::IntArrayRef output_size) override;
  /// The group's result. Throws ValueError unless one operand is the result of the group's base.
  at::Tensor add(const at::Tensor& x, const at::Tensor& y) override;
  /// The same with a relu inside the group.
  at::Tensor add_relu(const at::Tensor& x, const at::Tensor& y) override;
  at::Tensor sub(const at::Tensor& x, const at::Tensor& y) override;
  at::Tensor mul(const at::Tensor& x, const at::Tensor& y) override;
  at::Tensor cat(const std::vector<at::Tensor>& tensors, int64_t dim = 0) override;
  /// A group with an add, on its base's input and the other operand; `output_size` as in
  /// `forward_sized`.
  at::Tensor run(const at::Tensor& input, const at::Tensor& skip,
                 at::OptionalIntArrayRef output_size = std::nullopt);

  virtual const GroupSpec& spec() const = 0;
  const fuse::Variant& variant() const { return spec().variant; }

 protected:
  /// act(bn(base(source)) + skip) in the layer's stage.
  virtual at::Tensor compute(const Operands& operands, bool add_relu) = 0;
  /// Whether a batch norm takes the batch's own statistics.
  virtual bool live_statistics() const { return false; }

  /// The layer's name for messages.
  std::string label() const { return path.empty() ? spec().name() : path; }

 private:
  [[noreturn]] void refuse(const char* method) const;
  void check_add(bool wanted) const;
  at::Tensor compute_checked(const Operands& operands, bool add_relu);
};

}  // namespace horizon::nn
