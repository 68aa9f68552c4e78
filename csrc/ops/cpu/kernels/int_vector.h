#pragma once

#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

// Vectors of int32 accumulators, one type per instruction set. For kernel files only.
namespace horizon::cpu::HORIZON_CAPABILITY {
namespace {

#define HORIZON_INLINE inline __attribute__((always_inline))

#if defined(__AVX512F__)

struct IntVector {
  static constexpr int kLanes = 16;
  __m512i v;

  static HORIZON_INLINE IntVector zero() { return {_mm512_setzero_si512()}; }
  static HORIZON_INLINE IntVector load(const void* p) { return {_mm512_loadu_si512(p)}; }
  static HORIZON_INLINE IntVector load_codes(const uint8_t* p) {
    // The masked form: gcc 12 warns about the undefined vector inside the plain one.
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm512_maskz_cvtepu8_epi32(0xFFFF, codes)};
  }
  static HORIZON_INLINE IntVector broadcast(int32_t x) { return {_mm512_set1_epi32(x)}; }
  HORIZON_INLINE void store(int32_t* p) const { _mm512_storeu_si512(p, v); }
  /// this + a.lo16 * b.lo16 + a.hi16 * b.hi16 per lane. Exact: unlike vpmaddubsw, whose 16-bit
  /// sums saturate, vpmaddwd sums in 32 bits.
  HORIZON_INLINE IntVector add_pairs(IntVector a, IntVector b) const {
    return {_mm512_add_epi32(v, _mm512_madd_epi16(a.v, b.v))};
  }
  HORIZON_INLINE IntVector bit_and(IntVector a) const { return {_mm512_and_si512(v, a.v)}; }
  HORIZON_INLINE IntVector shifted_right_8() const {
    return {_mm512_maskz_srli_epi32(0xFFFF, v, 8)};
  }
  /// The four bytes at p + offset[lane] in each lane.
  static HORIZON_INLINE IntVector gather_bytes(const uint8_t* p, IntVector offset) {
    return {_mm512_mask_i32gather_epi32(_mm512_setzero_si512(), 0xFFFF, offset.v, p, 1)};
  }
  HORIZON_INLINE IntVector add(IntVector a) const { return {_mm512_add_epi32(v, a.v)}; }
};

#elif defined(__AVX2__)

struct IntVector {
  static constexpr int kLanes = 8;
  __m256i v;

  static HORIZON_INLINE IntVector zero() { return {_mm256_setzero_si256()}; }
  static HORIZON_INLINE IntVector load(const void* p) {
    return {_mm256_loadu_si256(static_cast<const __m256i*>(p))};
  }
  static HORIZON_INLINE IntVector load_codes(const uint8_t* p) {
    return {_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)))};
  }
  static HORIZON_INLINE IntVector broadcast(int32_t x) { return {_mm256_set1_epi32(x)}; }
  HORIZON_INLINE void store(int32_t* p) const {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v);
  }
  HORIZON_INLINE IntVector add_pairs(IntVector a, IntVector b) const {
    return {_mm256_add_epi32(v, _mm256_madd_epi16(a.v, b.v))};
  }
  HORIZON_INLINE IntVector bit_and(IntVector a) const { return {_mm256_and_si256(v, a.v)}; }
  HORIZON_INLINE IntVector shifted_right_8() const { return {_mm256_srli_epi32(v, 8)}; }
  static HORIZON_INLINE IntVector gather_bytes(const uint8_t* p, IntVector offset) {
    return {_mm256_i32gather_epi32(reinterpret_cast<const int*>(p), offset.v, 1)};
  }
  HORIZON_INLINE IntVector add(IntVector a) const { return {_mm256_add_epi32(v, a.v)}; }
};

#elif defined(__SSE2__)

struct IntVector {
  static constexpr int kLanes = 4;
  __m128i v;

  static HORIZON_INLINE IntVector zero() { return {_mm_setzero_si128()}; }
  static HORIZON_INLINE IntVector load(const void* p) {
    return {_mm_loadu_si128(static_cast<const __m128i*>(p))};
  }
  static HORIZON_INLINE IntVector load_codes(const uint8_t* p) {
    int32_t four = 0;
    std::memcpy(&four, p, sizeof four);
    const __m128i codes = _mm_unpacklo_epi8(_mm_cvtsi32_si128(four), _mm_setzero_si128());
    return {_mm_unpacklo_epi16(codes, _mm_setzero_si128())};
  }
  static HORIZON_INLINE IntVector broadcast(int32_t x) { return {_mm_set1_epi32(x)}; }
  HORIZON_INLINE void store(int32_t* p) const {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), v);
  }
  HORIZON_INLINE IntVector add_pairs(IntVector a, IntVector b) const {
    return {_mm_add_epi32(v, _mm_madd_epi16(a.v, b.v))};
  }
  HORIZON_INLINE IntVector bit_and(IntVector a) const { return {_mm_and_si128(v, a.v)}; }
  HORIZON_INLINE IntVector shifted_right_8() const { return {_mm_srli_epi32(v, 8)}; }
  static HORIZON_INLINE IntVector gather_bytes(const uint8_t* p, IntVector offset) {
    int32_t at[kLanes];
    int32_t four[kLanes];
    offset.store(at);
    for (int i = 0; i < kLanes; ++i) std::memcpy(&four[i], p + at[i], sizeof four[i]);
    return load(four);
  }
  HORIZON_INLINE IntVector add(IntVector a) const { return {_mm_add_epi32(v, a.v)}; }
};

#else

struct IntVector {
  static constexpr int kLanes = 4;
  int32_t v[kLanes];

  static HORIZON_INLINE IntVector zero() { return {}; }
  static HORIZON_INLINE IntVector load(const void* p) {
    IntVector r;
    std::memcpy(r.v, p, sizeof r.v);
    return r;
  }
  static HORIZON_INLINE IntVector load_codes(const uint8_t* p) {
    IntVector r;
    for (int i = 0; i < kLanes; ++i) r.v[i] = p[i];
    return r;
  }
  static HORIZON_INLINE IntVector broadcast(int32_t x) {
    IntVector r;
    for (int i = 0; i < kLanes; ++i) r.v[i] = x;
    return r;
  }
  HORIZON_INLINE void store(int32_t* p) const { std::memcpy(p, v, sizeof v); }
  HORIZON_INLINE IntVector add_pairs(IntVector a, IntVector b) const {
    IntVector r = *this;
    for (int i = 0; i < kLanes; ++i) {
      int16_t x[2], y[2];
      std::memcpy(x, &a.v[i], sizeof x);
      std::memcpy(y, &b.v[i], sizeof y);
      r.v[i] += int32_t{x[0]} * y[0] + int32_t{x[1]} * y[1];
    }
    return r;
  }
  HORIZON_INLINE IntVector bit_and(IntVector a) const {
    IntVector r = *this;
    for (int i = 0; i < kLanes; ++i) r.v[i] &= a.v[i];
    return r;
  }
  HORIZON_INLINE IntVector shifted_right_8() const {
    IntVector r;
    for (int i = 0; i < kLanes; ++i)
      r.v[i] = static_cast<int32_t>(static_cast<uint32_t>(v[i]) >> 8);
    return r;
  }
  static HORIZON_INLINE IntVector gather_bytes(const uint8_t* p, IntVector offset) {
    IntVector r;
    for (int i = 0; i < kLanes; ++i) std::memcpy(&r.v[i], p + offset.v[i], sizeof r.v[i]);
    return r;
  }
  HORIZON_INLINE IntVector add(IntVector a) const {
    IntVector r = *this;
    for (int i = 0; i < kLanes; ++i) r.v[i] += a.v[i];
    return r;
  }
};

#endif

}  // namespace
}  // namespace horizon::cpu::HORIZON_CAPABILITY
