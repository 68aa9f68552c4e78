#pragma once

#include "nn/fake_quantize.h"

namespace horizon::nn {

/// Marks where float data becomes quantized. The identity in a float model.
class QuantStubImpl : public LayerOf<QuantStubImpl> {
 public:
  QuantStubImpl() = default;
  /// With a fixed grid, for inputs whose range is known; otherwise it is observed. `zero_point` is
  /// in the grid's own terms, 0 on a symmetric one. Throws ValueError unless `scale` is finite and
  /// positive; prepare throws it for a zero point that its preset does not have.
  explicit QuantStubImpl(double scale, int64_t zero_point = 0);

  at::Tensor forward(const at::Tensor& input) override { return input; }
  std::shared_ptr<QuantStubImpl> blank() const;
  void pretty_print(std::ostream& stream) const override;
  const std::optional<FixedGrid>& fixed() const { return fixed_; }

 private:
  std::optional<FixedGrid> fixed_;
};
TORCH_MODULE(QuantStub);

/// Marks where quantized data becomes float. The identity in a float model.
class DeQuantStubImpl : public LayerOf<DeQuantStubImpl> {
 public:
  at::Tensor forward(const at::Tensor& input) override { return input; }
  std::shared_ptr<DeQuantStubImpl> blank() const;
  void pretty_print(std::ostream& stream) const override;
};
TORCH_MODULE(DeQuantStub);

/// Observes and fake-quantizes what enters the quantized part.
class PreparedQuantStubImpl : public LayerOf<PreparedQuantStubImpl> {
 public:
  explicit PreparedQuantStubImpl(const QConfig& qconfig,
                                 const std::optional<FixedGrid>& fixed = std::nullopt);

  at::Tensor forward(const at::Tensor& input) override;
  std::shared_ptr<PreparedQuantStubImpl> blank() const;
  void pretty_print(std::ostream& stream) const override;
  const std::shared_ptr<FakeQuantizeImpl>& quantizer() const { return quantizer_; }

 protected:
  void rebind() override;

 private:
  QConfig qconfig_;
  std::shared_ptr<FakeQuantizeImpl> quantizer_;
};

/// Floats to uint8 codes. State: scale, stored zero_point.
class ConvertedQuantStubImpl : public FixedDtypes<LayerOf<ConvertedQuantStubImpl>> {
 public:
  ConvertedQuantStubImpl();
  explicit ConvertedQuantStubImpl(const PreparedQuantStubImpl& source);

  at::Tensor forward(const at::Tensor& input) override;
  std::shared_ptr<ConvertedQuantStubImpl> blank() const;
  void pretty_print(std::ostream& stream) const override;

 private:
  at::Tensor scale_, zero_point_;
};

/// Ends the quantized part after prepare: the result carries no grid. A high-precision result
/// passes. Throws ValueError for float input: nothing was quantized there.
class PreparedDeQuantStubImpl : public LayerOf<PreparedDeQuantStubImpl> {
 public:
  at::Tensor forward(const at::Tensor& input) override;
  std::shared_ptr<PreparedDeQuantStubImpl> blank() const;
  void pretty_print(std::ostream& stream) const override;
  at::ScalarType output_dtype() const { return output_dtype_; }

 private:
  at::ScalarType output_dtype_ = at::kFloat;
};

/// uint8 codes to floats of the prepared model's dtype; a high-precision result passes.
class ConvertedDeQuantStubImpl : public LayerOf<ConvertedDeQuantStubImpl> {
 public:
  explicit ConvertedDeQuantStubImpl(at::ScalarType output_dtype = at::kFloat);

  at::Tensor forward(const at::Tensor& input) override;
  std::shared_ptr<ConvertedDeQuantStubImpl> blank() const;
  void pretty_print(std::ostream& stream) const override;

 private:
  at::ScalarType output_dtype_;
};

}  // namespace horizon::nn
