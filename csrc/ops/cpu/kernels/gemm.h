#pragma once

#include <cstdint>

#include "ops/cpu/dispatch.h"

namespace horizon::cpu {

/// How the rows of a matrix of input codes lie in an NHWC image. Row r is the output position
/// (n, i, j) of a grid; its entries are, tap by tap, the `group_channels` codes at the input
/// position (i * step_y + tap_y, j * step_x + tap_x), or the zero point outside the image.
///
/// A convolution is one such matrix; a transposed convolution of stride s is s * s of them, one per
/// residue of the output position, each with the taps that reach that residue.
struct GatherGeometry {
  const uint8_t* input;  ///< [batch, height, width, channels]
  int64_t height, width, channels;
  int64_t first_channel, group_channels;
  int64_t grid_height, grid_width;
  int64_t step_y, step_x;
  int64_t taps;
  const int64_t* tap_y;
  const int64_t* tap_x;
  int64_t run;  ///< taps that follow each other in memory: divides `taps`; 1 where none do
  const uint8_t* last_pixel;  ///< the image's, [channels]
  int64_t depth;              ///< taps * group_channels, rounded up to the kernel's depth step
  int32_t zero_point;
};

/// Integer matrix product C[r][n] = sum_k A[r][k] * W[n][k] in exact int32.
struct GemmKernels {
  int64_t depth_step;    ///< k is padded with zero weights to a multiple of this
  int64_t lanes;         ///< n is padded to a multiple of this
  int64_t element_size;  ///< bytes of an entry of A
  /// Whether A holds q - z (then the sums are final) or q (then z * sum(W[n]) is to be subtracted).
  bool centred;

  /// Bytes of the packed form of `n` rows of weights of `k` entries.
  int64_t (*packed_size)(int64_t n, int64_t k);

  /// Packs weights [n][k] (row stride `stride`). Writes to `sums` [n] what z is to be multiplied
  /// with: the sum of each row, or 0 where A is centred.
  void (*pack)(const int8_t* weight, int64_t n, int64_t k, int64_t stride, void* packed,
               int32_t* sums);

  /// Writes rows [first, first + rows) of A, `depth` entries each.
  void (*gather)(const GatherGeometry& geometry, int64_t first, int64_t rows, void* a);

  /// Columns [column, column + columns) of C, both multiples of `lanes`; `a_stride` in bytes,
  /// `c_stride` in entries, `depth` a multiple of depth_step.
  void (*multiply)(const void* a, int64_t a_stride, int64_t rows, const void* packed,
                   int64_t column, int64_t columns, int64_t depth, int32_t* c, int64_t c_stride);
};

/// Products of 16-bit pairs (vpmaddwd): every instruction set.
HORIZON_DECLARE_KERNELS(GemmKernels, gemm_kernels);

namespace avx512 {
/// Products of four u8 x s8 (vpdpbusd). Only where has_vnni().
const GemmKernels& gemm_vnni_kernels();
}  // namespace avx512

/// gemm_vnni_kernels() where has_vnni(), gemm_kernels() otherwise.
const GemmKernels& best_gemm_kernels();

}  // namespace horizon::cpu
