#pragma once

#include <cmath>
#include <cstdint>

#include "ops/cuda/kernels/fused_channels.h"
#include "quant/requantize.h"

namespace horizon::ops::cuda {

/// z from the accumulators of codes: float(sum) * (s_x s_w) + bias in two roundings, as the
/// converted model computes it before its batch norm. NaN everywhere if the input held one.
template <typename V>
struct AccumulatorScale {
  const float* input_scale = nullptr;    ///< one number
  const float* weight_scales = nullptr;  ///< [channels]
  const V* bias = nullptr;               ///< [channels]; may be null
  const int32_t* has_nan = nullptr;      ///< one number

  HORIZON_HD double input() const {
    return static_cast<double>(*has_nan != 0 ? std::nanf("") : *input_scale);
  }
  HORIZON_HD float value(float sum, double input, int64_t c) const {
    const double shift = bias == nullptr ? 0.0 : static_cast<double>(bias[c]);
    return quant::scale_value(sum, quant::requantize_multiplier(input, weight_scales[c], 1.0, 1.0),
                              quant::requantize_offset(shift, 1.0));
  }
};

/// Reads groups of z for a reduction over channels.
template <typename Z, typename T>
struct ReadValues {
  const Z* z;

  HORIZON_HD void lanes(const ChannelTile& at, int j, int64_t, int64_t, T* x) const {
    load<ChannelCut::kGroup>(z + at.offset[j], at.valid[j], x);
  }
  HORIZON_HD void all(const ChannelTile& at, int j, int64_t, T* x) const {
    load<ChannelCut::kGroup>(z + at.offset[j], at.valid[j], x);
  }
};

/// The same from accumulators, which it replaces by z.
template <typename V>
struct ReadAccumulators {
  float* z;
  AccumulatorScale<V> scale;

  HORIZON_HD void lanes(const ChannelTile& at, int j, int64_t channel, int64_t channels,
                        float* x) const {
    scale_group(at, j, channel, channels, x);
  }
  HORIZON_HD void all(const ChannelTile& at, int j, int64_t channel, float* x) const {
    scale_group(at, j, channel, 0, x);
  }

 private:
  /// `channels` 0: all elements are of one.
  HORIZON_HD void scale_group(const ChannelTile& at, int j, int64_t c, int64_t channels,
                              float* x) const {
    if (at.valid[j] == 0) return load<ChannelCut::kGroup>(z, 0, x);
    load<ChannelCut::kGroup>(z + at.offset[j], at.valid[j], x);
    const double input_scale = scale.input();
    for (int i = 0; i < ChannelCut::kGroup; ++i) {
      x[i] = scale.value(x[i], input_scale, c);
      if (channels != 0) c = c + 1 == channels ? 0 : c + 1;
    }
    store<ChannelCut::kGroup>(z + at.offset[j], at.valid[j], x);
  }
};

}  // namespace horizon::ops::cuda
