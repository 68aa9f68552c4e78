#pragma once

#include <functional>
#include <string>

#include "nn/fake_quantize.h"

namespace horizon::nn {

/// A single-input layer besides the conv family: one description for floats and for codes. Both
/// functions are empty where the module is no such layer, `on_codes` where it has no integer form.
struct UnaryOp {
  std::function<at::Tensor(const at::Tensor& x)> on_floats;
  /// q, its scale and zero point, scale and zero point of the result.
  std::function<at::Tensor(const at::Tensor& q, const at::Tensor& s, const at::Tensor& z,
                           const at::Tensor& out_s, const at::Tensor& out_z)>
      on_codes;
  std::string text{};
};

/// Layers with a grid of their own: AvgPool2d, AdaptiveAvgPool2d, ReLU6 (also Hardtanh(0, 6)).
UnaryOp unary_op(const torch::nn::Module& module);

/// A layer that keeps the grid of its input.
struct PassingOp {
  std::function<at::Tensor(const at::Tensor& x, bool training)> on_floats;
  std::function<at::Tensor(const at::Tensor& q, const at::Tensor& z)> on_codes;
  std::string text{};
  /// The probability of a dropout: what survives in training lies on a grid 1 / (1 - p) as coarse.
  double dropout = 0;
};

/// ReLU, MaxPool2d, Flatten, Dropout, Dropout2d, Identity.
PassingOp passing_op(const torch::nn::Module& module);

/// A module's name and arguments as it prints them, without namespaces.
std::string text_of(const torch::nn::Module& module);

/// A UnaryOp whose result is fake-quantized; integer arithmetic in eval mode.
class PreparedUnaryImpl : public LayerOf<PreparedUnaryImpl> {
 public:
  PreparedUnaryImpl(UnaryOp op, const QConfig& qconfig);

  at::Tensor forward(const at::Tensor& input) override;
  std::shared_ptr<PreparedUnaryImpl> blank() const;
  void pretty_print(std::ostream& stream) const override;
  const UnaryOp& op() const { return op_; }
  const std::shared_ptr<FakeQuantizeImpl>& quantizer() const { return quantizer_; }

 protected:
  void rebind() override;
  const QConfig& qconfig() const { return qconfig_; }

 private:
  UnaryOp op_;
  QConfig qconfig_;
  std::shared_ptr<FakeQuantizeImpl> quantizer_;
};

/// The same on uint8 codes. State: scale, stored zero_point.
class ConvertedUnaryImpl : public FixedDtypes<LayerOf<ConvertedUnaryImpl>> {
 public:
  explicit ConvertedUnaryImpl(UnaryOp op);
  explicit ConvertedUnaryImpl(const PreparedUnaryImpl& source);

  at::Tensor forward(const at::Tensor& input) override;
  std::shared_ptr<ConvertedUnaryImpl> blank() const;
  void pretty_print(std::ostream& stream) const override;
  const UnaryOp& op() const { return op_; }

 protected:
  UnaryOp op_;
  at::Tensor scale_, zero_point_;
};

/// A BatchNorm1d or BatchNorm2d on its own: an affine map of codes in eval mode. State: that of the
/// batch norm and, below "activation_post_process", its quantizer's.
class PreparedBatchNormImpl : public LayerOf<PreparedBatchNormImpl, PreparedUnaryImpl> {
 public:
  /// Takes over the tensors of `bn`.
  PreparedBatchNormImpl(std::shared_ptr<torch::nn::Module> bn, const QConfig& qconfig,
                        bool frozen = false);

  at::Tensor forward(const at::Tensor& input) override { return PreparedUnaryImpl::forward(input); }
  void train(bool on = true) override;
  void to(torch::Device device, torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Device device, bool non_blocking = false) override;
  std::shared_ptr<PreparedBatchNormImpl> blank() const;
  const std::shared_ptr<torch::nn::Module>& bn() const { return bn_; }
  /// Keeps the statistics fixed in training, or lets them move again.
  void freeze_statistics(bool frozen);

 private:
  // Not a child: its tensors are registered here.
  std::shared_ptr<torch::nn::Module> bn_;
  bool frozen_;
};

/// The same on uint8 codes. State: bn_scale (gamma / sigma) and bias fp64, one per channel; scale,
/// stored zero_point.
class ConvertedBatchNormImpl : public LayerOf<ConvertedBatchNormImpl, ConvertedUnaryImpl> {
 public:
  ConvertedBatchNormImpl(int64_t channels, std::string text);
  /// Throws ValueError: no running statistics, constants that are not finite.
  explicit ConvertedBatchNormImpl(const PreparedBatchNormImpl& source);

  at::Tensor forward(const at::Tensor& input) override {
    return ConvertedUnaryImpl::forward(input);
  }
  std::shared_ptr<ConvertedBatchNormImpl> blank() const;

 private:
  at::Tensor factor_, offset_;
};

/// A PassingOp after prepare, on floats and on codes; a tensor without a grid is computed in float.
class PassingImpl : public LayerOf<PassingImpl> {
 public:
  explicit PassingImpl(PassingOp op);

  at::Tensor forward(const at::Tensor& input) override;
  std::shared_ptr<PassingImpl> blank() const;
  void pretty_print(std::ostream& stream) const override;

 private:
  PassingOp op_;
};

}  // namespace horizon::nn
