#pragma once

#include "ops/quantizer.h"
#include "quant/grid.h"

namespace horizon {

/// Which quantizers a module gets. Weights are int8, abs-max per output channel, always.
struct QConfig {
  quant::Preset preset = quant::Preset::kHorizon;
  ops::Observer observer = ops::Observer::kMovingAverage;
  /// The weight of a new batch in a moving average, in (0, 1].
  double averaging_constant = 0.01;
  /// False: the output of a layer with a weight stays at high precision (fp32).
  bool quantize_output = true;
  /// Skip batches with nan or inf with one warning instead of raising.
  bool skip_nonfinite = false;
};

/// The usual quantizers for training.
inline QConfig default_qat_qconfig(quant::Preset preset = quant::Preset::kHorizon) {
  return {.preset = preset};
}

/// For the last layer: quantized input and weight, high-precision output.
inline QConfig default_qat_out_qconfig(quant::Preset preset = quant::Preset::kHorizon) {
  return {.preset = preset, .quantize_output = false};
}

/// For calibration without training: running minimum and maximum.
inline QConfig default_calib_qconfig(quant::Preset preset = quant::Preset::kHorizon) {
  return {.preset = preset, .observer = ops::Observer::kMinMax};
}

}  // namespace horizon
