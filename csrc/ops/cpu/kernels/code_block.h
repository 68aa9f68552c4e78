#pragma once

#include <cstdint>

#include "ops/cpu/kernels/int_vector.h"

// Blocks of 16 codes between memory and arithmetic. Compilers vectorize loops over int32 and float
// well and conversions from and to bytes badly, so these two are written out. For kernel files
// only.
namespace horizon::cpu::HORIZON_CAPABILITY {
namespace {

constexpr int64_t kCodeBlock = 16;

/// values[i] = codes[i].
HORIZON_INLINE void widen_codes(const uint8_t* codes, int32_t* values) {
  for (int64_t i = 0; i < kCodeBlock; i += IntVector::kLanes) {
    IntVector::load_codes(codes + i).store(values + i);
  }
}

/// codes[i] = the low byte of bits[i].
HORIZON_INLINE void narrow_codes(const uint32_t* bits, uint8_t* codes) {
#if defined(__AVX512F__)
  const __m128i bytes = _mm512_maskz_cvtepi32_epi8(0xFFFF, _mm512_loadu_si512(bits));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(codes), bytes);
#elif defined(__AVX2__)
  const auto* from = reinterpret_cast<const __m256i*>(bits);
  const __m256i low = _mm256_set1_epi32(0xFF);
  const __m256i a = _mm256_and_si256(_mm256_loadu_si256(from), low);
  const __m256i b = _mm256_and_si256(_mm256_loadu_si256(from + 1), low);
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xD8);
  const __m128i bytes =
      _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(codes), bytes);
#elif defined(__SSE2__)
  const auto* from = reinterpret_cast<const __m128i*>(bits);
  const __m128i low = _mm_set1_epi32(0xFF);
  const __m128i a = _mm_and_si128(_mm_loadu_si128(from), low);
  const __m128i b = _mm_and_si128(_mm_loadu_si128(from + 1), low);
  const __m128i c = _mm_and_si128(_mm_loadu_si128(from + 2), low);
  const __m128i d = _mm_and_si128(_mm_loadu_si128(from + 3), low);
  const __m128i bytes = _mm_packus_epi16(_mm_packs_epi32(a, b), _mm_packs_epi32(c, d));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(codes), bytes);
#else
  for (int64_t i = 0; i < kCodeBlock; ++i) codes[i] = static_cast<uint8_t>(bits[i]);
#endif
}

}  // namespace
}  // namespace horizon::cpu::HORIZON_CAPABILITY
