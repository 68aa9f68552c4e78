#pragma once

#include <cstdint>

#include "ops/cpu/dispatch.h"
#include "quant/requantize.h"

namespace horizon::cpu {

/// What follows a value on the output's grid: activation, zero point, saturation.
struct OutputStage {
  quant::Activation activation;
  float six;         ///< ReLU6's bound: 6 / s_y, or 6 where the output has no quantizer
  float zero_point;  ///< stored
};

/// The end of a convolution group (steps 2 to 5 of the integer arithmetic).
struct ConvEpilogue {
  const int32_t* correction;  ///< [channels] added to the sums
  const float* multiplier;    ///< [channels] M
  const float* offset;        ///< [channels] B
  const uint8_t* skip;        ///< codes laid out as the output, or null
  int32_t skip_zero_point;
  float skip_ratio;
  OutputStage stage;
};

/// What precedes and ends a convolution. Counts are in entries; pointers may be unaligned.
struct CodesKernels {
  /// M and B of a convolution's output channels (requantize_multiplier, requantize_offset).
  /// Returns whether all are finite.
  bool (*conv_constants)(double x_scale, const float* weight_scale, const double* factor,
                         const double* offset, double y_scale, int64_t channels, float* multiplier,
                         float* result_offset);

  /// Requantizes rows [rows][columns] of sums (row stride `acc_stride`) into `output` at
  /// `position[r]` entries from its start. The per-channel vectors start at the first column; they
  /// and the last row of sums are readable up to a multiple of 16 columns.
  void (*conv_codes)(const ConvEpilogue& epilogue, const int32_t* acc, int64_t acc_stride,
                     int64_t rows, int64_t columns, const int64_t* position, uint8_t* output);
  /// The same on real numbers: no output quantizer (the stage's zero point is not used).
  void (*conv_values)(const ConvEpilogue& epilogue, const int32_t* acc, int64_t acc_stride,
                      int64_t rows, int64_t columns, const int64_t* position, float* output);
  /// Steps 3 to 5 on values of steps 1 and 2: skip, activation, code or value.
  void (*skip_codes)(const ConvEpilogue& epilogue, const float* v, int64_t count, uint8_t* output);
  void (*skip_values)(const ConvEpilogue& epilogue, const float* v, int64_t count, float* output);
};

/// So many codes certainly have an int32 sum.
inline constexpr int64_t kMaxWindow = int64_t{1} << 23;

HORIZON_DECLARE_KERNELS(CodesKernels, codes_kernels);

}  // namespace horizon::cpu
