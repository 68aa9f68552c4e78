#pragma once

#include <cstdint>

#include "ops/cpu/dispatch.h"
#include "ops/cpu/kernels/codes.h"

namespace horizon::cpu {

struct BinaryCodes {
  int32_t a_zero_point, b_zero_point;
  float a_ratio, b_ratio;  ///< multiply: a_ratio alone
  OutputStage stage;
};

/// float(q - z) * multiplier + offset, then the stage.
struct AffineMap {
  int32_t zero_point;
  float multiplier, offset;
  OutputStage stage;
};

/// Operations on activation codes, element by element. Pointers may be unaligned.
struct ElementwiseKernels {
  void (*add)(const BinaryCodes& op, const uint8_t* a, const uint8_t* b, int64_t count,
              uint8_t* output);
  void (*multiply)(const BinaryCodes& op, const uint8_t* a, const uint8_t* b, int64_t count,
                   uint8_t* output);

  /// One map for `rows` rows of `width` codes each, which begin `stride` and `output_stride` codes
  /// after one another.
  void (*affine)(const AffineMap& map, const uint8_t* q, int64_t rows, int64_t width,
                 int64_t stride, uint8_t* output, int64_t output_stride);

  /// multiplier[c] and offset[c] for column c of [rows][columns]; those of `map` are not used.
  void (*affine_columns)(const AffineMap& map, const float* multiplier, const float* offset,
                         const uint8_t* q, int64_t rows, int64_t columns, uint8_t* output);

  /// multiplier[c] and offset[c] for each plane of `size` codes; the first plane is of
  /// `first_channel`, and channel 0 follows the last of `channels`.
  void (*affine_planes)(const AffineMap& map, const float* multiplier, const float* offset,
                        int64_t channels, const uint8_t* q, int64_t planes, int64_t size,
                        int64_t first_channel, uint8_t* output);
};

HORIZON_DECLARE_KERNELS(ElementwiseKernels, elementwise_kernels);

}  // namespace horizon::cpu
