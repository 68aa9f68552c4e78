#include "ops/cpu/kernels/gemm.h"

#include "ops/cpu/kernels/gather.h"
#include "ops/cpu/kernels/int_vector.h"

namespace horizon::cpu::HORIZON_CAPABILITY {
namespace {

constexpr int64_t kLanes = IntVector::kLanes;
constexpr int64_t kPackedLanes = 16;
constexpr int64_t kPanel = 4;

#define HORIZON_NAME_OF(capability) #capability
#define HORIZON_NAME(capability) HORIZON_NAME_OF(capability)
constexpr const char* kName = HORIZON_NAME(HORIZON_CAPABILITY);

int64_t padded_depth(int64_t depth) { return depth; }

int64_t expanded_bytes(int64_t depth) { return kPanel * kPackedLanes * depth * 2; }

/// Layout: [n / lanes][depth / 2][lanes][2] int16, so that one vector holds a pair for each lane.
void expand(const int8_t* packed, int64_t blocks, int64_t depth, void* expanded) {
  constexpr int64_t kParts = kPackedLanes / kLanes;
  for (int64_t b = 0; b < blocks; ++b) {
    const int8_t* from = packed + b * kPackedLanes * depth;
    auto* to = static_cast<uint32_t*>(expanded) + b * kPackedLanes * depth / 2;
    for (int64_t k = 0; k < depth; k += 4, from += 4 * kPackedLanes) {
      for (int64_t part = 0; part < kParts; ++part) {
        uint32_t* pairs = to + (part * depth / 2 + k / 2) * kLanes;
        uint32_t word[kLanes];
        std::memcpy(word, from + part * kLanes * 4, sizeof word);
        for (int64_t lane = 0; lane < kLanes; ++lane) {
          const auto w = static_cast<int32_t>(word[lane]);
          const auto b0 = static_cast<uint32_t>(static_cast<int8_t>(w)) & 0xFFFF;
          const auto b1 = static_cast<uint32_t>(static_cast<int8_t>(w >> 8)) << 16;
          const auto b2 = static_cast<uint32_t>(static_cast<int8_t>(w >> 16)) & 0xFFFF;
          const auto b3 = static_cast<uint32_t>(w >> 24) << 16;
          pairs[lane] = b0 | b1;
          pairs[kLanes + lane] = b2 | b3;
        }
      }
    }
  }
}

void nothing(int64_t /*depth*/) {}
void nothing() {}

// Register budget: 16 vectors before AVX-512 (6 x 2 sums), 32 with it (6 x 4 or 12 x 2).
#if defined(__AVX512F__)
constexpr int kWideRows = 12;
#else
constexpr int kWideRows = 6;
#endif

/// kRows x (kBlocks * lanes) accumulators in registers.
template <int kRows, int kBlocks>
void multiply_tile(const char* a, int64_t a_stride, const char* w, int64_t w_block, int64_t depth,
                   int32_t* c, int64_t c_stride) {
  IntVector sum[kRows][kBlocks];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int b = 0; b < kBlocks; ++b) sum[r][b] = IntVector::zero();
  }
  for (int64_t p = 0; p < depth; p += 2) {
    IntVector weight[kBlocks];
#pragma GCC unroll 4
    for (int b = 0; b < kBlocks; ++b) weight[b] = IntVector::load(w + b * w_block);
    w += sizeof(IntVector);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      int32_t pair = 0;
      std::memcpy(&pair, a + r * a_stride, sizeof pair);
      const IntVector codes = IntVector::broadcast(pair);
#pragma GCC unroll 4
      for (int b = 0; b < kBlocks; ++b) sum[r][b] = sum[r][b].add_pairs(codes, weight[b]);
    }
    a += sizeof(int32_t);
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int b = 0; b < kBlocks; ++b) sum[r][b].store(c + r * c_stride + b * kLanes);
  }
}

template <int kRows, int kBlocks>
void multiply_rows(const char* a, int64_t a_stride, int64_t rows, const char* w, int64_t w_block,
                   int64_t depth, int32_t* c, int64_t c_stride) {
  int64_t r = 0;
  for (; r + kRows <= rows; r += kRows) {
    multiply_tile<kRows, kBlocks>(a + r * a_stride, a_stride, w, w_block, depth, c + r * c_stride,
                                  c_stride);
  }
  for (; r + 2 <= rows; r += 2) {
    multiply_tile<2, kBlocks>(a + r * a_stride, a_stride, w, w_block, depth, c + r * c_stride,
                              c_stride);
  }
  for (; r < rows; ++r) {
    multiply_tile<1, kBlocks>(a + r * a_stride, a_stride, w, w_block, depth, c + r * c_stride,
                              c_stride);
  }
}

void multiply(const void* a, int64_t a_stride, int64_t rows, const void* weights, int64_t blocks,
              int64_t depth, int32_t* c, int64_t c_stride) {
  const int64_t w_block = kLanes * depth * static_cast<int64_t>(sizeof(int16_t));
  const auto* codes = static_cast<const char*>(a);
  const auto* w = static_cast<const char*>(weights);
  int64_t left = blocks * kPackedLanes / kLanes;
  while (left > 0) {
    int64_t width = 1;
#if defined(__AVX512F__)
    if (left >= 4) {
      width = 4;
      multiply_rows<6, 4>(codes, a_stride, rows, w, w_block, depth, c, c_stride);
    } else
#endif
        if (left >= 2) {
      width = 2;
      multiply_rows<kWideRows, 2>(codes, a_stride, rows, w, w_block, depth, c, c_stride);
    } else {
      multiply_rows<kWideRows, 1>(codes, a_stride, rows, w, w_block, depth, c, c_stride);
    }
    left -= width;
    w += width * w_block;
    c += width * kLanes;
  }
}

}  // namespace

const GemmKernels& gemm_kernels() {
  static const GemmKernels table{.name = kName,
                                 .element_size = sizeof(int16_t),
                                 .row_tile = kWideRows,
                                 .row_chunk = 48,
                                 .panel = kPanel,
                                 .tile_bytes = 256 * 1024,
                                 .products_per_cycle = 2 * kLanes,
                                 .padded_depth = padded_depth,
                                 .gather = gather_rows<CentredEntry>,
                                 .expanded_bytes = expanded_bytes,
                                 .expand = expand,
                                 .begin = nothing,
                                 .end = nothing,
                                 .multiply = multiply};
  return table;
}

}  // namespace horizon::cpu::HORIZON_CAPABILITY
