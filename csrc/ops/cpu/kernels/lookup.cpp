#include "ops/cpu/kernels/lookup.h"

#if defined(__AVX512BW__)
#include <immintrin.h>
#endif

namespace horizon::cpu::HORIZON_CAPABILITY {
namespace {

void lookup_bytes(const uint8_t* codes, const uint8_t* table, int64_t rows, int64_t width,
                  int64_t stride, uint8_t* output, int64_t output_stride) {
  for (int64_t r = 0; r < rows; ++r, codes += stride, output += output_stride) {
    for (int64_t i = 0; i < width; ++i) output[i] = table[codes[i]];
  }
}

#if defined(__AVX512BW__)

#define HORIZON_VBMI __attribute__((target("avx512vbmi")))

struct Table256 {
  __m512i quarter[4];
};

/// A permutation picks from two quarters by the low seven bits; the eighth chooses between halves.
HORIZON_VBMI inline __m512i entries(const Table256& table, __m512i codes) {
  const __m512i low = _mm512_permutex2var_epi8(table.quarter[0], codes, table.quarter[1]);
  const __m512i high = _mm512_permutex2var_epi8(table.quarter[2], codes, table.quarter[3]);
  return _mm512_mask_blend_epi8(_mm512_movepi8_mask(codes), low, high);
}

HORIZON_VBMI void lookup_vbmi(const uint8_t* codes, const uint8_t* table, int64_t rows,
                              int64_t width, int64_t stride, uint8_t* output,
                              int64_t output_stride) {
  constexpr int64_t kLanes = 64;
  Table256 all;
  for (int i = 0; i < 4; ++i) all.quarter[i] = _mm512_loadu_si512(table + i * kLanes);
  const int64_t whole = width / kLanes * kLanes;
  const __mmask64 tail = (__mmask64{1} << (width - whole)) - 1;
  for (int64_t r = 0; r < rows; ++r, codes += stride, output += output_stride) {
    for (int64_t i = 0; i < whole; i += kLanes) {
      _mm512_storeu_si512(output + i, entries(all, _mm512_loadu_si512(codes + i)));
    }
    if (tail == 0) continue;
    const __m512i last = entries(all, _mm512_maskz_loadu_epi8(tail, codes + whole));
    _mm512_mask_storeu_epi8(output + whole, tail, last);
  }
}

#undef HORIZON_VBMI

#endif

}  // namespace

const LookupKernels& lookup_kernels() {
#if defined(__AVX512BW__)
  static const LookupKernels table{__builtin_cpu_supports("avx512vbmi") != 0 ? lookup_vbmi
                                                                             : lookup_bytes};
#else
  static const LookupKernels table{lookup_bytes};
#endif
  return table;
}

}  // namespace horizon::cpu::HORIZON_CAPABILITY
