#include "ops/cpu/kernels/gather.h"
#include "ops/cpu/kernels/gemm.h"

// The AVX-512 copy alone has contents; callers ask has_vnni() first.
#if defined(__AVX512F__)
#pragma GCC target("avx512vnni")

namespace horizon::cpu::avx512 {
namespace {

constexpr int64_t kDepthStep = 4;
constexpr int64_t kLanes = 16;

int64_t padded_depth(int64_t depth) { return depth; }
int64_t expanded_bytes(int64_t /*depth*/) { return 0; }
void nothing(int64_t /*depth*/) {}
void nothing() {}

/// vpdpbusd (not vpdpbusds) wraps instead of saturating, so that the sum of codes minus
/// z * sum(W) is exact whenever the sum of centred codes fits int32.
template <int kRows, int kBlocks>
void multiply_tile(const uint8_t* a, int64_t a_stride, const int8_t* w, int64_t w_block,
                   int64_t depth, int32_t* c, int64_t c_stride) {
  __m512i sum[kRows][kBlocks];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int b = 0; b < kBlocks; ++b) sum[r][b] = _mm512_setzero_si512();
  }
  for (int64_t p = 0; p < depth; p += kDepthStep) {
    __m512i weight[kBlocks];
#pragma GCC unroll 4
    for (int b = 0; b < kBlocks; ++b) weight[b] = _mm512_loadu_si512(w + b * w_block);
    w += kLanes * kDepthStep;
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      int32_t four = 0;
      std::memcpy(&four, a + r * a_stride, sizeof four);
      const __m512i codes = _mm512_set1_epi32(four);
#pragma GCC unroll 4
      for (int b = 0; b < kBlocks; ++b) {
        sum[r][b] = _mm512_dpbusd_epi32(sum[r][b], codes, weight[b]);
      }
    }
    a += kDepthStep;
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int b = 0; b < kBlocks; ++b) {
      _mm512_storeu_si512(c + r * c_stride + b * kLanes, sum[r][b]);
    }
  }
}

template <int kRows, int kBlocks>
void multiply_rows(const uint8_t* a, int64_t a_stride, int64_t rows, const int8_t* w,
                   int64_t w_block, int64_t depth, int32_t* c, int64_t c_stride) {
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
  const int64_t w_block = kLanes * depth;
  const auto* codes = static_cast<const uint8_t*>(a);
  const auto* w = static_cast<const int8_t*>(weights);
  // rows x blocks: 24 sums, the weights and one broadcast fill the 32 registers.
  if (blocks == 4) {
    multiply_rows<6, 4>(codes, a_stride, rows, w, w_block, depth, c, c_stride);
  } else if (blocks == 3) {
    multiply_rows<8, 3>(codes, a_stride, rows, w, w_block, depth, c, c_stride);
  } else if (blocks == 2) {
    multiply_rows<12, 2>(codes, a_stride, rows, w, w_block, depth, c, c_stride);
  } else {
    multiply_rows<12, 1>(codes, a_stride, rows, w, w_block, depth, c, c_stride);
  }
}

}  // namespace

const GemmKernels& gemm_vnni_kernels() {
  static const GemmKernels table{.name = "vnni",
                                 .element_size = sizeof(uint8_t),
                                 .row_tile = 12,
                                 .row_chunk = 48,
                                 .panel = 4,
                                 .tile_bytes = 256 * 1024,
                                 .products_per_cycle = 96,
                                 .padded_depth = padded_depth,
                                 .gather = gather_rows<PlainEntry>,
                                 .expanded_bytes = expanded_bytes,
                                 .expand = nullptr,
                                 .begin = nothing,
                                 .end = nothing,
                                 .multiply = multiply};
  return table;
}

}  // namespace horizon::cpu::avx512

#endif
