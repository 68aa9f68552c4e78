#pragma once

#include <cstdint>

#include "ops/cpu/kernels/codes.h"
#include "ops/cpu/kernels/gemm.h"

namespace horizon::cpu {

/// Convolutions whose groups are too small for a matrix product: sums of codes times weights for
/// rows [first, first + rows) of a grid, for all output channels at once, outside the image with
/// the codes of `padding` (a pixel filled with the zero point). The caller subtracts
/// z * sum(weights). At most kMaxDepthwiseTaps taps.
struct DepthwiseKernels {
  int64_t lanes;

  /// One input channel per output channel. `weight` is int32 [taps][channels], `acc`
  /// [rows][channels].
  void (*depthwise)(const GatherGeometry& geometry, const int32_t* weight, const uint8_t* padding,
                    int64_t first, int64_t rows, int32_t* acc);

  /// `out_channels` in groups of few channels, at least three channels in all. They are read four
  /// at a time from `channel[o] + 4 * step` on, so that `padding` and `last`, a copy of the image's
  /// last pixel, have three readable bytes behind them. `weight` is [taps][steps][blocks][2][lanes]
  /// pairs of int16: of the channels 0 and 2, then 1 and 3. `acc` is [rows][out_channels rounded up
  /// to lanes], `channel` as long as its rows.
  void (*grouped)(const GatherGeometry& geometry, const int32_t* channel, int64_t out_channels,
                  const int32_t* weight, const uint8_t* padding, const uint8_t* last, int64_t first,
                  int64_t rows, int32_t* acc);
};

HORIZON_DECLARE_KERNELS(DepthwiseKernels, depthwise_kernels);

/// A depthwise convolution from codes to codes without a skip. The taps are `tap_rows` rows of
/// `tap_columns`, in ascending order.
struct DepthwiseLayer {
  GatherGeometry geometry;
  int64_t tap_rows, tap_columns;
  const uint8_t* padding;  ///< a pixel of zero points
  ConvEpilogue epilogue;
  int64_t output_step;  ///< entries between the outputs of neighbours in a row
};

/// Kernels that requantize sums where they are.
struct DepthwiseLayerKernels {
  int64_t block;  ///< channels that are computed at once

  /// Weights and constants in the kernel's order.
  int64_t (*prepared_bytes)(int64_t tap_rows, int64_t tap_columns, int64_t channels);
  /// `packed` is the tap class of a packed weight (ops/conv_weights.h).
  void (*prepare)(const DepthwiseLayer& layer, const int8_t* packed, void* prepared);

  /// How many pointers `run_row` needs for each row of taps.
  int64_t (*row_span)(const DepthwiseLayer& layer);
  /// Row `row` (of all images' rows) of the outputs, for channel blocks [begin, end). `output` is
  /// the row's first entry.
  void (*run_row)(const DepthwiseLayer& layer, const void* prepared, int64_t row, int64_t begin,
                  int64_t end, const uint8_t** pixels, uint8_t* output);
};

namespace avx512 {
/// Only where has_vnni().
const DepthwiseLayerKernels& depthwise_vnni_kernels();
}  // namespace avx512

/// depthwise_vnni_kernels() where has_vnni(), null otherwise.
const DepthwiseLayerKernels* depthwise_layer_kernels();

inline constexpr int64_t kMaxDepthwiseTaps = 256;

}  // namespace horizon::cpu
