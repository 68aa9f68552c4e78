#include "ops/cpu/kernels/gather.h"
#include "ops/cpu/kernels/gemm.h"

// The AVX-512 copy alone has contents; callers ask has_amx() first.
#if defined(__AVX512F__)
#pragma GCC target("amx-tile,amx-int8")

namespace horizon::cpu::avx512 {
namespace {

constexpr int64_t kTileRows = 16;
constexpr int64_t kWordBytes = 4;
constexpr int64_t kMostWords = 16;   // of a row of a tile
constexpr int64_t kBlockBytes = 64;  // of 16 outputs' words

/// The depth is cut into tiles of equal width, so that one configuration serves all: `words` words
/// of four codes each.
struct DepthTiles {
  int64_t count, words;
};

DepthTiles depth_tiles(int64_t depth) {
  const int64_t words = depth / kWordBytes;
  const int64_t count = (words + kMostWords - 1) / kMostWords;
  return {count, (words + count - 1) / count};
}

/// A's rows end in zeros where the tiles are wider than the depth; what follows the weights there
/// is then multiplied with 0.
int64_t padded_depth(int64_t depth) {
  const DepthTiles tiles = depth_tiles(depth);
  return tiles.count * tiles.words * kWordBytes;
}

int64_t expanded_bytes(int64_t /*depth*/) { return 0; }

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

/// Tiles 0 to 3 hold sums, 4 and 5 codes, 6 and 7 weights.
void begin(int64_t depth) {
  const auto words = static_cast<uint16_t>(depth_tiles(depth).words);
  TileConfig config;
  for (int t = 0; t < 8; ++t) {
    const bool codes = t == 4 || t == 5;
    config.row_bytes[t] = codes ? words * kWordBytes : kBlockBytes;
    config.rows[t] = static_cast<uint8_t>(t >= 6 ? words : kTileRows);
  }
  // gcc's intrinsic declares that it reads the first 8 bytes alone, and drops the other stores.
  asm volatile("" : : "m"(config));
  // gcc 12 thinks that the instruction reads eight bytes, and drops the rest.
  __asm__ volatile("" : : "r"(&config) : "memory");
  _tile_loadconfig(&config);
}

void end() { _tile_release(); }

/// kRows x kBlocks tiles of sums. They wrap instead of saturating, so that the sum of codes minus
/// z * sum(W) is exact whenever the sum of centred codes fits int32.
template <int kRows, int kBlocks>
void multiply_tiles(const uint8_t* a, int64_t a_stride, const int8_t* w, int64_t w_block,
                    const DepthTiles& depth, int32_t* c, int64_t c_stride) {
  const uint8_t* a1 = a + kTileRows * a_stride;
  const int8_t* w1 = w + w_block;
  _tile_zero(0);
  if constexpr (kBlocks == 2) _tile_zero(1);
  if constexpr (kRows == 2) _tile_zero(2);
  if constexpr (kRows == 2 && kBlocks == 2) _tile_zero(3);
  for (int64_t t = 0; t < depth.count; ++t) {
    const int64_t codes = t * depth.words * kWordBytes;
    const int64_t weights = t * depth.words * kBlockBytes;
    _tile_loadd(6, w + weights, kBlockBytes);
    _tile_loadd(4, a + codes, a_stride);
    _tile_dpbusd(0, 4, 6);
    if constexpr (kBlocks == 2) {
      _tile_loadd(7, w1 + weights, kBlockBytes);
      _tile_dpbusd(1, 4, 7);
    }
    if constexpr (kRows == 2) {
      _tile_loadd(5, a1 + codes, a_stride);
      _tile_dpbusd(2, 5, 6);
      if constexpr (kBlocks == 2) _tile_dpbusd(3, 5, 7);
    }
  }
  const int64_t stride = c_stride * static_cast<int64_t>(sizeof(int32_t));
  int32_t* c1 = c + kTileRows * c_stride;
  _tile_stored(0, c, stride);
  if constexpr (kBlocks == 2) _tile_stored(1, c + kTileRows, stride);
  if constexpr (kRows == 2) _tile_stored(2, c1, stride);
  if constexpr (kRows == 2 && kBlocks == 2) _tile_stored(3, c1 + kTileRows, stride);
}

template <int kBlocks>
void multiply_rows(const uint8_t* a, int64_t a_stride, int64_t rows, const int8_t* w,
                   int64_t w_block, const DepthTiles& depth, int32_t* c, int64_t c_stride) {
  int64_t r = 0;
  for (; r + kTileRows < rows; r += 2 * kTileRows) {
    multiply_tiles<2, kBlocks>(a + r * a_stride, a_stride, w, w_block, depth, c + r * c_stride,
                               c_stride);
  }
  if (r < rows) {
    multiply_tiles<1, kBlocks>(a + r * a_stride, a_stride, w, w_block, depth, c + r * c_stride,
                               c_stride);
  }
}

void multiply(const void* a, int64_t a_stride, int64_t rows, const void* weights, int64_t blocks,
              int64_t depth, int32_t* c, int64_t c_stride) {
  const DepthTiles tiles = depth_tiles(depth);
  const auto* codes = static_cast<const uint8_t*>(a);
  const auto* w = static_cast<const int8_t*>(weights);
  const int64_t w_block = depth / kWordBytes * kBlockBytes;
  if (blocks == 2) {
    multiply_rows<2>(codes, a_stride, rows, w, w_block, tiles, c, c_stride);
  } else {
    multiply_rows<1>(codes, a_stride, rows, w, w_block, tiles, c, c_stride);
  }
}

}  // namespace

const GemmKernels& gemm_amx_kernels() {
  static const GemmKernels table{.name = "amx",
                                 .element_size = sizeof(uint8_t),
                                 .row_tile = kTileRows,
                                 .whole_tiles = true,
                                 .row_chunk = 2 * kTileRows,
                                 .panel = 2,
                                 .tile_bytes = 1024 * 1024,
                                 .products_per_cycle = 700,
                                 .padded_depth = padded_depth,
                                 .gather = gather_rows<PlainEntry>,
                                 .expanded_bytes = expanded_bytes,
                                 .expand = nullptr,
                                 .begin = begin,
                                 .end = end,
                                 .multiply = multiply};
  return table;
}

}  // namespace horizon::cpu::avx512

#endif
