#pragma once

#include <vector>

#include "nn/fake_quantize.h"
#include "nn/layer.h"

namespace horizon::nn {

/// Arithmetic between tensors as a module, so that its result can have a quantizer: one instance
/// per place in a model. Held through the holder FloatFunctional (nn/slot.h).
class FloatFunctionalImpl : public LayerOf<FloatFunctionalImpl> {
 public:
  /// x + y, broadcasting.
  virtual at::Tensor add(const at::Tensor& x, const at::Tensor& y);
  /// relu(x + y).
  virtual at::Tensor add_relu(const at::Tensor& x, const at::Tensor& y);
  /// x - y, broadcasting.
  virtual at::Tensor sub(const at::Tensor& x, const at::Tensor& y);
  /// x * y, broadcasting.
  virtual at::Tensor mul(const at::Tensor& x, const at::Tensor& y);
  /// Concatenation along `dim`.
  virtual at::Tensor cat(const std::vector<at::Tensor>& tensors, int64_t dim = 0);

  /// Refuses: the module is used through its methods.
  at::Tensor forward(const at::Tensor& input) override;
  std::shared_ptr<FloatFunctionalImpl> blank() const;
  void pretty_print(std::ostream& stream) const override;
};

/// The same methods with a quantized result: floats on a grid, integer arithmetic in eval mode.
class PreparedFunctionalImpl : public LayerOf<PreparedFunctionalImpl, FloatFunctionalImpl> {
 public:
  explicit PreparedFunctionalImpl(const QConfig& qconfig);

  at::Tensor add(const at::Tensor& x, const at::Tensor& y) override;
  at::Tensor add_relu(const at::Tensor& x, const at::Tensor& y) override;
  at::Tensor sub(const at::Tensor& x, const at::Tensor& y) override;
  at::Tensor mul(const at::Tensor& x, const at::Tensor& y) override;
  at::Tensor cat(const std::vector<at::Tensor>& tensors, int64_t dim = 0) override;
  std::shared_ptr<PreparedFunctionalImpl> blank() const;
  void pretty_print(std::ostream& stream) const override;

  const std::shared_ptr<FakeQuantizeImpl>& quantizer() const { return quantizer_; }

 protected:
  void rebind() override;

 private:
  QConfig qconfig_;
  std::shared_ptr<FakeQuantizeImpl> quantizer_;
};

/// The same methods on uint8 codes. State: scale, stored zero_point of the result.
class ConvertedFunctionalImpl
    : public FixedDtypes<LayerOf<ConvertedFunctionalImpl, FloatFunctionalImpl>> {
 public:
  ConvertedFunctionalImpl();
  /// With the grid that the prepared module uses. Throws ValueError without an output quantizer.
  explicit ConvertedFunctionalImpl(const PreparedFunctionalImpl& source);

  at::Tensor add(const at::Tensor& x, const at::Tensor& y) override;
  at::Tensor add_relu(const at::Tensor& x, const at::Tensor& y) override;
  at::Tensor sub(const at::Tensor& x, const at::Tensor& y) override;
  at::Tensor mul(const at::Tensor& x, const at::Tensor& y) override;
  at::Tensor cat(const std::vector<at::Tensor>& tensors, int64_t dim = 0) override;
  std::shared_ptr<ConvertedFunctionalImpl> blank() const;
  void pretty_print(std::ostream& stream) const override;

 private:
  at::Tensor scale_, zero_point_;
};

}  // namespace horizon::nn
