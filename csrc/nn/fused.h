#pragma once

#include <memory>

#include "nn/group_layer.h"

namespace horizon::nn {

/// A float fused group: act(bn(base(input)) + skip), the one body of all 36 variants (nn/family.h
/// names them). State: weight, bias and, below "bn", the batch norm's.
class FusedImpl : public LayerOf<FusedImpl, GroupLayer> {
 public:
  /// Takes over `base` and `bn` (null exactly if the variant has none), parameters and all.
  /// `frozen`: the batch norm stays in eval mode through train() calls.
  FusedImpl(const fuse::Variant& variant, std::shared_ptr<torch::nn::Module> base,
            std::shared_ptr<torch::nn::Module> bn, bool frozen = false);

  at::Tensor forward(const at::Tensor& input) override { return GroupLayer::forward(input); }
  void train(bool on = true) override;
  void to(torch::Device device, torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Device device, bool non_blocking = false) override;
  std::shared_ptr<FusedImpl> blank() const;
  void pretty_print(std::ostream& stream) const override;

  const GroupSpec& spec() const override { return spec_; }
  const std::shared_ptr<torch::nn::Module>& base() const { return base_; }
  const std::shared_ptr<torch::nn::Module>& bn() const { return bn_; }
  bool frozen() const { return frozen_; }
  /// Keeps the batch norm's statistics fixed in training, or lets them move again.
  void freeze_statistics(bool frozen);

 protected:
  void rebind() override;
  at::Tensor compute(const Operands& operands, bool add_relu) override;
  bool live_statistics() const override { return bn_ != nullptr && bn_->is_training(); }

 private:
  /// The base's result in the size that it was called for.
  at::Tensor resized(const Operands& operands) const;

  GroupSpec spec_;
  // Not a child: its tensors are registered here, under the names that every stage uses.
  std::shared_ptr<torch::nn::Module> base_;
  std::shared_ptr<torch::nn::Module> bn_;
  bool frozen_;
};

}  // namespace horizon::nn
