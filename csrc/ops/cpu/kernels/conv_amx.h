#pragma once

#include <cstdint>

#include "ops/cpu/kernels/codes.h"
#include "ops/cpu/kernels/gemm.h"

#if defined(__x86_64__)
namespace horizon::cpu::avx512 {

// A convolution as products of AMX tiles: 16 rows of codes times 16 outputs, up to 64 codes deep.
// Rows are read where they lie, as long as the 16 of a tile are equally far apart; sums go through
// the epilogue while the next ones are computed. Only where has_amx().

/// How the depth of a row of weights is cut: `steps` tiles of `words` words of four codes.
struct TileDepth {
  int64_t steps, words;
};

/// Equal tiles that cover at least `words` words.
TileDepth tile_depth(int64_t words);

/// One group of a convolution.
struct TileConv {
  TileDepth depth;
  const int64_t* step_offset;  ///< [depth.steps] bytes from a row's start to the step's codes
  int64_t row_bytes;           ///< between the rows of a tile
  /// [outputs / 16][depth / 4][16][4] (ops/conv_weights.h); read kPackedSlack bytes beyond.
  const int8_t* weights;
  int64_t block_bytes;  ///< of 16 outputs
  int64_t channels;     ///< outputs of the group
  /// Vectors and the skip start at the group's first output, and are readable up to a multiple of
  /// 32 of them.
  ConvEpilogue epilogue;
  // One of the two, from the group's first output.
  uint8_t* codes;
  float* values;
};

/// Two tiles of rows, or one. All 16 rows of a tile are read.
struct TilePair {
  static constexpr int64_t kRows = 32;
  const uint8_t* tile[2];   ///< the first row of each; the second null where there is none
  int64_t count;            ///< of rows that are written
  uint8_t row[kRows];       ///< which
  int64_t position[kRows];  ///< where their output starts, in entries
};

/// Outputs that are computed together.
inline constexpr int64_t kPanel = 32;

/// Panels [begin, end) of all pairs. The thread's tiles are configured and released.
void conv_tiles(const TileConv& conv, const TilePair* pairs, int64_t count, int64_t begin,
                int64_t end);

/// Rows of codes for geometry.depth entries each (gather.h), for layers whose rows do not lie so.
void gather_codes(const GatherGeometry& geometry, int64_t first, int64_t rows, uint8_t* a);

}  // namespace horizon::cpu::avx512
#endif
