#pragma once

#include <cstdint>

#include "ops/cpu/dispatch.h"
#include "ops/cpu/kernels/float_types.h"

namespace horizon::cpu {

/// One grid for every element. `inv_scale` is 1 / scale in fp32.
struct Grid {
  float scale;
  float inv_scale;
  int32_t zero_point;
  int32_t lo;
  int32_t hi;
};

/// One grid for each channel of elements counted as [.., channels, inner]: element i has channel
/// (i / inner) % channels. The arrays go on periodically: entry channels + j equals entry j, for
/// `channels + kBlock` entries.
struct ChannelGrids {
  const float* scale;
  const float* inv_scale;
  const int32_t* zero_point;
  int32_t lo;
  int32_t hi;
  int64_t channels;
  int64_t inner;
};

/// Elementwise kernels on dense memory. Elements [begin, end) are handled; `begin` is a multiple of
/// kBlock. Bit i % 8 of mask byte i / 8 belongs to element i; the bits behind the last element are
/// 0. Pointers are those of element 0. Destination and source may be the same.
struct FakeQuantizeKernels {
  /// `mask` may be null.
  void (*per_tensor)(FloatType type, const void* x, void* y, uint8_t* mask, int64_t begin,
                     int64_t end, const Grid& grid);
  void (*per_channel)(FloatType type, const void* x, void* y, uint8_t* mask, int64_t begin,
                      int64_t end, const ChannelGrids& grids);
  /// grad where the mask has a 1, else 0.
  void (*mask_gradient)(FloatType type, const void* grad, const uint8_t* mask, void* out,
                        int64_t begin, int64_t end);
  /// Stored codes; returns false if an element is NaN (its code is the zero point). Grids are
  /// within [-255, 255].
  bool (*quantize)(FloatType type, const void* x, uint8_t* codes, int64_t begin, int64_t end,
                   const Grid& grid);
  /// The same for weights, per channel.
  bool (*quantize_channels)(FloatType type, const void* x, int8_t* codes, int64_t begin,
                            int64_t end, const ChannelGrids& grids);
  /// (code - zero_point) * scale.
  void (*dequantize)(FloatType type, const uint8_t* codes, void* y, int64_t begin, int64_t end,
                     float scale, int32_t zero_point);
};

HORIZON_DECLARE_KERNELS(FakeQuantizeKernels, fake_quantize_kernels);

}  // namespace horizon::cpu
