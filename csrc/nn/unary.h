#pragma once

#include <functional>
#include <string>

#include "nn/fake_quantize.h"

namespace horizon::nn {

/// A single-input layer besides the conv family: one description for floats and for codes. Both
/// functions are empty where the module is no such layer.
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

 private:
  UnaryOp op_;
  at::Tensor scale_, zero_point_;
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
