#include "ops/cpu/kernels/gather.h"
#include "ops/cpu/kernels/gemm.h"

// The AVX-512 copy alone has contents; callers ask has_vnni() first.
#if defined(__AVX512F__)
#pragma GCC target("avx512vnni")

namespace horizon::cpu::avx512 {
namespace {

constexpr int64_t kDepthStep = 4;
constexpr int64_t kLanes = 16;

int64_t rounded_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

int64_t packed_size(int64_t n, int64_t k) {
  return rounded_up(n, kLanes) * rounded_up(k, kDepthStep);
}

/// Layout: [n / lanes][k / 4][lanes][4] int8.
void pack(const int8_t* weight, int64_t n, int64_t k, int64_t stride, void* packed, int32_t* sums) {
  for (int64_t row = 0; row < n; ++row) {
    int32_t sum = 0;
    for (int64_t p = 0; p < k; ++p) sum += weight[row * stride + p];
    sums[row] = sum;
  }
  auto* out = static_cast<int8_t*>(packed);
  for (int64_t block = 0; block < n; block += kLanes) {
    const int64_t used = n - block < kLanes ? n - block : kLanes;
    const int8_t* from = weight + block * stride;
    int64_t p = 0;
    for (; p + kDepthStep <= k; p += kDepthStep, out += kLanes * kDepthStep) {
      for (int64_t lane = 0; lane < used; ++lane) {
        std::memcpy(out + lane * kDepthStep, from + lane * stride + p, kDepthStep);
      }
      std::memset(out + used * kDepthStep, 0, static_cast<size_t>((kLanes - used) * kDepthStep));
    }
    if (p == k) continue;
    std::memset(out, 0, kLanes * kDepthStep);
    for (int64_t lane = 0; lane < used; ++lane) {
      for (int64_t rest = p; rest < k; ++rest) {
        out[lane * kDepthStep + rest - p] = from[lane * stride + rest];
      }
    }
    out += kLanes * kDepthStep;
  }
}

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

void multiply(const void* a, int64_t a_stride, int64_t rows, const void* packed, int64_t column,
              int64_t columns, int64_t depth, int32_t* c, int64_t c_stride) {
  const int64_t w_block = kLanes * depth;
  const auto* codes = static_cast<const uint8_t*>(a);
  const auto* w = static_cast<const int8_t*>(packed) + column / kLanes * w_block;
  int64_t left = columns / kLanes;
  while (left > 0) {
    // rows x blocks: 24 sums, the weights and one broadcast fill the 32 registers.
    const int64_t blocks = left >= 4 ? 4 : left;
    if (blocks == 4) {
      multiply_rows<6, 4>(codes, a_stride, rows, w, w_block, depth, c, c_stride);
    } else if (blocks == 3) {
      multiply_rows<8, 3>(codes, a_stride, rows, w, w_block, depth, c, c_stride);
    } else if (blocks == 2) {
      multiply_rows<12, 2>(codes, a_stride, rows, w, w_block, depth, c, c_stride);
    } else {
      multiply_rows<12, 1>(codes, a_stride, rows, w, w_block, depth, c, c_stride);
    }
    left -= blocks;
    w += blocks * w_block;
    c += blocks * kLanes;
  }
}

}  // namespace

const GemmKernels& gemm_vnni_kernels() {
  static const GemmKernels table{kDepthStep,
                                 kLanes,
                                 sizeof(uint8_t),
                                 /*centred=*/false,
                                 packed_size,
                                 pack,
                                 gather_rows<PlainEntry>,
                                 multiply};
  return table;
}

}  // namespace horizon::cpu::avx512

#endif
