#pragma once

#include <tuple>

#include "nn/layer.h"
#include "nn/qconfig.h"
#include "ops/quantizer.h"

namespace horizon::nn {

/// What quantizers do; see set_fake_quantize.
enum class FakeQuantState {
  kQat,          ///< in training ranges move and fake-quant is on; in eval ranges are frozen
  kValidation,   ///< ranges are frozen, fake-quant is on
  kCalibration,  ///< ranges move, also in eval mode; fake-quant is off
};

/// A grid whose range is known; `zero_point` in the grid's own terms.
struct FixedGrid {
  double scale = 1;
  int64_t zero_point = 0;
};

/// The quantizer of an output: the state of a range, and fake quantization on it.
///
/// Buffers, as in Python: min_val, max_val, scale (fp32), observed (int64), zero_point (int32, in
/// the grid's own terms); 0-d. A change of the model's dtype leaves them alone.
class FakeQuantizeImpl : public FixedDtypes<LayerOf<FakeQuantizeImpl>> {
 public:
  explicit FakeQuantizeImpl(const QConfig& qconfig = {});

  /// Observes (in training or calibration) and fake-quantizes; the result carries its grid.
  at::Tensor forward(const at::Tensor& input) override;
  /// The same under the name of another module.
  at::Tensor quantize(const at::Tensor& input, const std::string& producer);

  /// Whether a forward now moves the range.
  bool moves() const;
  /// Whether the grid is the initial one although it should follow the data.
  bool never_observed() const;
  /// The quantizer as operators take it.
  ops::QuantizerArgs args(bool observe) const;
  /// Fresh tensors: the scale and the zero point of the stored codes.
  std::tuple<at::Tensor, at::Tensor> grid() const;
  void set_state(FakeQuantState state);
  /// Sets the grid. Throws ValueError for a zero point that the preset does not have.
  void fix(const FixedGrid& grid);

  std::shared_ptr<FakeQuantizeImpl> blank() const;
  void pretty_print(std::ostream& stream) const override;

  at::Tensor min_val, max_val, observed, scale, zero_point;
  bool fake_quant_enabled = true;
  bool observer_enabled = true;
  bool calibrating = false;

 private:
  QConfig qconfig_;
};

TORCH_MODULE(FakeQuantize);

}  // namespace horizon::nn
