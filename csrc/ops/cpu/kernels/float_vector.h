#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "ops/cpu/kernels/int_vector.h"

// Vectors of floats between codes and codes, one type per instruction set; the formulas of
// csrc/quant take them as they take a float. For kernel files only.
namespace horizon::cpu::HORIZON_CAPABILITY {
namespace {

#if defined(__AVX512BW__)

struct FloatVector {
  static constexpr int kLanes = 16;
  __m512 v;

  FloatVector() = default;
  HORIZON_INLINE FloatVector(__m512 x) : v(x) {}                 // NOLINT: as a float
  HORIZON_INLINE FloatVector(float x) : v(_mm512_set1_ps(x)) {}  // NOLINT
  static HORIZON_INLINE FloatVector load(const float* p) { return _mm512_loadu_ps(p); }
  /// The masked forms: gcc 12 warns about the undefined vectors inside the plain ones.
  static HORIZON_INLINE FloatVector from(IntVector x) {
    return _mm512_maskz_cvtepi32_ps(0xFFFF, x.v);
  }
  HORIZON_INLINE FloatVector operator+(FloatVector o) const { return _mm512_add_ps(v, o.v); }
  HORIZON_INLINE FloatVector operator-(FloatVector o) const { return _mm512_sub_ps(v, o.v); }
  HORIZON_INLINE FloatVector operator*(FloatVector o) const { return _mm512_mul_ps(v, o.v); }
  HORIZON_INLINE IntVector rounded() const { return {_mm512_maskz_cvtps_epi32(0xFFFF, v)}; }
};

HORIZON_INLINE FloatVector fma(FloatVector a, FloatVector b, FloatVector c) {
  return _mm512_fmadd_ps(a.v, b.v, c.v);
}
HORIZON_INLINE FloatVector at_least(FloatVector x, FloatVector low) {
  return _mm512_maskz_max_ps(0xFFFF, x.v, low.v);
}
HORIZON_INLINE FloatVector at_most(FloatVector x, FloatVector high) {
  return _mm512_maskz_min_ps(0xFFFF, x.v, high.v);
}

/// The low bytes of four vectors of [0, 255], in order.
HORIZON_INLINE void store_bytes(const IntVector (&x)[4], uint8_t* to) {
  const __m512i a = _mm512_packs_epi32(x[0].v, x[1].v);
  const __m512i b = _mm512_packs_epi32(x[2].v, x[3].v);
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m512i mixed = _mm512_packus_epi16(a, b);
  _mm512_storeu_si512(to, _mm512_maskz_permutexvar_epi32(0xFFFF, order, mixed));
}

#elif defined(__AVX2__)

struct FloatVector {
  static constexpr int kLanes = 8;
  __m256 v;

  FloatVector() = default;
  HORIZON_INLINE FloatVector(__m256 x) : v(x) {}                 // NOLINT: as a float
  HORIZON_INLINE FloatVector(float x) : v(_mm256_set1_ps(x)) {}  // NOLINT
  static HORIZON_INLINE FloatVector load(const float* p) { return _mm256_loadu_ps(p); }
  static HORIZON_INLINE FloatVector from(IntVector x) { return _mm256_cvtepi32_ps(x.v); }
  HORIZON_INLINE FloatVector operator+(FloatVector o) const { return _mm256_add_ps(v, o.v); }
  HORIZON_INLINE FloatVector operator-(FloatVector o) const { return _mm256_sub_ps(v, o.v); }
  HORIZON_INLINE FloatVector operator*(FloatVector o) const { return _mm256_mul_ps(v, o.v); }
  HORIZON_INLINE IntVector rounded() const { return {_mm256_cvtps_epi32(v)}; }
};

HORIZON_INLINE FloatVector fma(FloatVector a, FloatVector b, FloatVector c) {
  return _mm256_fmadd_ps(a.v, b.v, c.v);
}
HORIZON_INLINE FloatVector at_least(FloatVector x, FloatVector low) {
  return _mm256_max_ps(x.v, low.v);
}
HORIZON_INLINE FloatVector at_most(FloatVector x, FloatVector high) {
  return _mm256_min_ps(x.v, high.v);
}

HORIZON_INLINE void store_bytes(const IntVector (&x)[4], uint8_t* to) {
  const __m256i a = _mm256_packs_epi32(x[0].v, x[1].v);
  const __m256i b = _mm256_packs_epi32(x[2].v, x[3].v);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(a, b), order);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), bytes);
}

#else

// Loops that compilers vectorize.
struct FloatVector {
  static constexpr int kLanes = IntVector::kLanes;
  float v[kLanes];

  FloatVector() = default;
  HORIZON_INLINE FloatVector(float x) {  // NOLINT: as a float
    for (float& lane : v) lane = x;
  }
  static HORIZON_INLINE FloatVector load(const float* p) {
    FloatVector r;
    std::memcpy(r.v, p, sizeof r.v);
    return r;
  }
  static HORIZON_INLINE FloatVector from(IntVector x) {
    int32_t lanes[kLanes];
    x.store(lanes);
    FloatVector r;
    for (int i = 0; i < kLanes; ++i) r.v[i] = static_cast<float>(lanes[i]);
    return r;
  }
  template <typename Operation>
  HORIZON_INLINE FloatVector each(const FloatVector& o, const Operation& operation) const {
    FloatVector r;
    for (int i = 0; i < kLanes; ++i) r.v[i] = operation(v[i], o.v[i]);
    return r;
  }
  HORIZON_INLINE FloatVector operator+(const FloatVector& o) const {
    return each(o, [](float a, float b) { return a + b; });
  }
  HORIZON_INLINE FloatVector operator-(const FloatVector& o) const {
    return each(o, [](float a, float b) { return a - b; });
  }
  HORIZON_INLINE FloatVector operator*(const FloatVector& o) const {
    return each(o, [](float a, float b) { return a * b; });
  }
  /// Of numbers in [0, 255]: adding 1.5 * 2^23 rounds them, half to even, into the low bits.
  HORIZON_INLINE IntVector rounded() const {
    int32_t lanes[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      const float shifted = v[i] + 12582912.0F;
      std::memcpy(&lanes[i], &shifted, sizeof shifted);
    }
    return IntVector::load(lanes).bit_and(IntVector::broadcast(0xFF));
  }
};

HORIZON_INLINE FloatVector fma(const FloatVector& a, const FloatVector& b, const FloatVector& c) {
  FloatVector r;
  for (int i = 0; i < FloatVector::kLanes; ++i) r.v[i] = std::fma(a.v[i], b.v[i], c.v[i]);
  return r;
}
HORIZON_INLINE FloatVector at_least(const FloatVector& x, const FloatVector& low) {
  return x.each(low, [](float a, float b) { return a > b ? a : b; });
}
HORIZON_INLINE FloatVector at_most(const FloatVector& x, const FloatVector& high) {
  return x.each(high, [](float a, float b) { return a < b ? a : b; });
}

HORIZON_INLINE void store_bytes(const IntVector (&x)[4], uint8_t* to) {
  constexpr int kLanes = IntVector::kLanes;
  int32_t lanes[4 * kLanes];
  for (int i = 0; i < 4; ++i) x[i].store(lanes + i * kLanes);
  for (int i = 0; i < 4 * kLanes; ++i) to[i] = static_cast<uint8_t>(lanes[i]);
}

#endif

/// Codes that a store writes at once.
constexpr int64_t kCodes = 4 * FloatVector::kLanes;

#if defined(__AVX512BW__)

/// Loads codes as float(q - z).
struct CentredCodes {
  FloatVector bias;

  explicit CentredCodes(int32_t zero_point) : bias(8388608.0F + static_cast<float>(zero_point)) {}

  /// A code in the low byte of 2^23 is 2^23 + q, from which the bias leaves q - z exactly: one
  /// shuffle and one subtraction, where widening and converting take two more.
  HORIZON_INLINE FloatVector load(const uint8_t* codes) const {
    const __m128i sixteen = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
    const __m512i places = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i bits =
        _mm512_mask_shuffle_epi8(_mm512_set1_epi32(0x4B000000), 0x1111111111111111ULL,
                                 _mm512_maskz_broadcast_i32x4(0xFFFF, sixteen), places);
    return FloatVector(_mm512_castsi512_ps(bits)) - bias;
  }
};

#else

struct CentredCodes {
  FloatVector zero_point;

  explicit CentredCodes(int32_t z) : zero_point(static_cast<float>(z)) {}

  HORIZON_INLINE FloatVector load(const uint8_t* codes) const {
    return FloatVector::from(IntVector::load_codes(codes)) - zero_point;
  }
};

#endif

}  // namespace
}  // namespace horizon::cpu::HORIZON_CAPABILITY
