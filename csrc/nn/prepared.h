#pragma once

#include "nn/fused.h"

namespace horizon::nn {

/// A fused group, or a convolution or linear layer alone, between prepare and convert: floats on a
/// grid. Training fake-quantizes weight and output; eval mode runs the integer arithmetic of the
/// converted module.
///
/// State: that of the float group and, below "activation_post_process", its quantizer's.
class PreparedImpl : public LayerOf<PreparedImpl, GroupLayer> {
 public:
  /// Takes over the parts of `source`, tensors and all.
  PreparedImpl(const FusedImpl& source, const QConfig& qconfig);

  at::Tensor forward(const at::Tensor& input) override { return GroupLayer::forward(input); }

  void train(bool on = true) override;
  void to(torch::Device device, torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Device device, bool non_blocking = false) override;
  std::shared_ptr<PreparedImpl> blank() const;
  void pretty_print(std::ostream& stream) const override;

  const GroupSpec& spec() const override { return float_->spec(); }
  /// The float group with the same tensors.
  const std::shared_ptr<FusedImpl>& float_group() const { return float_; }
  /// Null for a high-precision output.
  const std::shared_ptr<FakeQuantizeImpl>& quantizer() const { return quantizer_; }
  /// Whether the weight is quantized in the forward.
  bool weight_fake_quant_enabled = true;
  /// Keeps the batch norm's statistics fixed in training, or lets them move again.
  void freeze_statistics(bool frozen) { float_->freeze_statistics(frozen); }

 protected:
  void rebind() override;
  at::Tensor compute(const Operands& operands, bool add_relu) override;
  bool live_statistics() const override { return float_->bn() && float_->bn()->is_training(); }

 private:
  QConfig qconfig_;
  // Not a child: its tensors and its batch norm are registered here.
  std::shared_ptr<FusedImpl> float_;
  std::shared_ptr<FakeQuantizeImpl> quantizer_;
};

}  // namespace horizon::nn
