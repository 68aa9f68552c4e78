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
  const uint8_t* input_end;
  int64_t height, width, channels;
  int64_t first_channel, group_channels;
  int64_t grid_height, grid_width;
  int64_t step_y, step_x;
  int64_t taps;
  const int64_t* tap_y;
  const int64_t* tap_x;
  int64_t run;  ///< taps that follow each other in memory: divides `taps`; 1 where none do
  const uint8_t* last_pixel;  ///< the image's, [channels]
  int64_t depth;              ///< entries of a row: taps * group_channels and zeros
  int32_t zero_point;
};

/// Bytes behind a matrix of codes that `gather` may overwrite.
inline constexpr int64_t kGatherSlack = 64;

/// Integer matrix product C[r][n] = sum_k A[r][k] * W[n][k] in exact int32. W is packed:
/// [n / 16][depth / 4][16][4] int8 (ops/conv_weights.h), and may be read kPackedSlack bytes beyond.
struct GemmKernels {
  const char* name;
  int64_t element_size;        ///< bytes of an entry of A: 1 for q, 2 for q - z
  int64_t row_tile;            ///< rows that are multiplied at once
  int64_t row_chunk;           ///< rows of C that stay in the first cache
  int64_t panel;               ///< blocks of 16 columns that are multiplied at once
  int64_t tile_bytes;          ///< of A at a time
  int64_t products_per_cycle;  ///< roughly

  /// Entries of a row of A for rows of `depth` weights, a multiple of four.
  int64_t (*padded_depth)(int64_t depth);

  /// Writes rows [first, first + rows) of A, `geometry.depth` entries each.
  void (*gather)(const GatherGeometry& geometry, int64_t first, int64_t rows, void* a);

  /// Bytes of a panel in the form that `multiply` reads. 0, and no `expand`: as it is packed.
  int64_t (*expanded_bytes)(int64_t depth);
  void (*expand)(const int8_t* packed, int64_t blocks, int64_t depth, void* expanded);

  /// Around calls of `multiply` with one depth on one thread.
  void (*begin)(int64_t depth);
  void (*end)();

  /// C for `blocks` blocks of columns, at most a panel; `a_stride` in bytes, `c_stride` in entries.
  void (*multiply)(const void* a, int64_t a_stride, int64_t rows, const void* weights,
                   int64_t blocks, int64_t depth, int32_t* c, int64_t c_stride);
};

/// Products of 16-bit pairs (vpmaddwd): every instruction set.
HORIZON_DECLARE_KERNELS(GemmKernels, gemm_kernels);

namespace avx512 {
/// Products of four u8 x s8 (vpdpbusd). Only where has_vnni().
const GemmKernels& gemm_vnni_kernels();
}  // namespace avx512

/// gemm_vnni_kernels() where has_vnni(), gemm_kernels() otherwise. Where has_amx(), convolutions go
/// through conv_tiles (conv_amx.h).
const GemmKernels& best_gemm_kernels();

}  // namespace horizon::cpu
