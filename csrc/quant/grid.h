#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "quant/macros.h"

namespace horizon::quant {

/// The quantization grids of activations. A grid fixes the range of codes and the rule that turns
/// an observed range into scale and zero point. Values are part of op schemas: never renumber.
enum class Preset : int32_t {
  kHorizon = 0,   ///< int8 symmetric, [-128, 127], scale = max|x| / 127.5
  kTensorrt = 1,  ///< int8 symmetric, [-128, 127], scale = max|x| / 127
  kX86 = 2,       ///< uint8 affine, [0, 255], zero representable
};

inline constexpr int32_t kPresetCount = 3;

HORIZON_HD bool is_symmetric(Preset preset) { return preset != Preset::kX86; }
HORIZON_HD int32_t quant_min(Preset preset) { return is_symmetric(preset) ? -128 : 0; }
HORIZON_HD int32_t quant_max(Preset preset) { return is_symmetric(preset) ? 127 : 255; }

/// Codes of activations are *stored* as uint8 on every device: code - quant_min. A signed grid is
/// therefore stored with 128 added, and its stored zero point is 128. The stored zero point is what
/// enters step 5 of the integer arithmetic (requantize.h), so storage is part of the numerics.
HORIZON_HD int32_t stored_zero_point(int32_t zero_point, Preset preset) {
  return zero_point - quant_min(preset);
}

inline constexpr int32_t kStoredMin = 0;
inline constexpr int32_t kStoredMax = 255;

/// Weights: per output channel, symmetric, never -128.
inline constexpr int32_t kWeightMin = -127;
inline constexpr int32_t kWeightMax = 127;

/// The smallest scale (as in torch's observers), so that zeros and dead channels are harmless.
inline constexpr float kMinScale = 1.1920928955078125e-07F;  // 2^-23

}  // namespace horizon::quant
