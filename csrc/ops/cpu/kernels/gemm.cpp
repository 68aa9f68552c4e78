#include "ops/cpu/kernels/gemm.h"

#include "ops/cpu/kernels/gather.h"
#include "ops/cpu/kernels/int_vector.h"

namespace horizon::cpu::HORIZON_CAPABILITY {
namespace {

constexpr int64_t kDepthStep = 2;
constexpr int64_t kLanes = IntVector::kLanes;

int64_t rounded_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

int64_t packed_size(int64_t n, int64_t k) {
  return rounded_up(n, kLanes) * rounded_up(k, kDepthStep) * static_cast<int64_t>(sizeof(int16_t));
}

/// Layout: [n / lanes][k / 2][lanes][2] int16, so that one vector holds a pair for each lane.
void pack(const int8_t* weight, int64_t n, int64_t k, int64_t stride, void* packed, int32_t* sums) {
  auto* out = static_cast<int16_t*>(packed);
  for (int64_t row = 0; row < n; ++row) sums[row] = 0;  // final: the codes are centred
  for (int64_t block = 0; block < n; block += kLanes) {
    const int64_t used = n - block < kLanes ? n - block : kLanes;
    const int8_t* from = weight + block * stride;
    for (int64_t p = 0; p < k; p += kDepthStep, out += kLanes * kDepthStep) {
      const bool pair = p + 1 < k;
      for (int64_t lane = 0; lane < used; ++lane) {
        out[2 * lane] = from[lane * stride + p];
        out[2 * lane + 1] = pair ? from[lane * stride + p + 1] : int16_t{0};
      }
      for (int64_t i = 2 * used; i < 2 * kLanes; ++i) out[i] = 0;
    }
  }
}

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
  for (int64_t p = 0; p < depth; p += kDepthStep) {
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

// Register budget: 16 vectors before AVX-512 (6 x 2 sums), 32 with it (6 x 4).
#if defined(__AVX512F__)
constexpr int kMaxBlocks = 4;
#else
constexpr int kMaxBlocks = 2;
#endif

void multiply(const void* a, int64_t a_stride, int64_t rows, const void* packed, int64_t column,
              int64_t columns, int64_t depth, int32_t* c, int64_t c_stride) {
  const int64_t w_block = kLanes * depth * static_cast<int64_t>(sizeof(int16_t));
  const auto* codes = static_cast<const char*>(a);
  const auto* w = static_cast<const char*>(packed) + column / kLanes * w_block;
  int64_t left = columns / kLanes;
  while (left > 0) {
    int64_t blocks = 1;
#if defined(__AVX512F__)
    if (left >= 4) {
      blocks = 4;
      multiply_rows<6, 4>(codes, a_stride, rows, w, w_block, depth, c, c_stride);
    } else
#endif
        if (left >= 2) {
      blocks = 2;
      multiply_rows<kMaxBlocks == 4 ? 12 : 6, 2>(codes, a_stride, rows, w, w_block, depth, c,
                                                 c_stride);
    } else {
      multiply_rows<kMaxBlocks == 4 ? 12 : 8, 1>(codes, a_stride, rows, w, w_block, depth, c,
                                                 c_stride);
    }
    left -= blocks;
    w += blocks * w_block;
    c += blocks * kLanes;
  }
}

}  // namespace

const GemmKernels& gemm_kernels() {
  static const GemmKernels table{kDepthStep,
                                 kLanes,
                                 sizeof(int16_t),
                                 /*centred=*/true,
                                 packed_size,
                                 pack,
                                 gather_rows<CentredEntry>,
                                 multiply};
  return table;
}

}  // namespace horizon::cpu::HORIZON_CAPABILITY
