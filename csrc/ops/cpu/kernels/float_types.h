#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "quant/macros.h"

#if defined(__F16C__) || defined(__SSE2__)
#include <immintrin.h>
#endif

namespace horizon::cpu {

/// Storage of float tensors as kernels see it.
enum class FloatType : int32_t { kFloat, kDouble, kHalf, kBFloat16 };

/// Bit patterns of the 16-bit types.
struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

/// The type that a storage type is computed in.
template <typename T>
using ComputeOf = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// Elements that kernels work on at once; a whole number of mask bytes.
inline constexpr int kBlock = 64;

}  // namespace horizon::cpu

#if defined(HORIZON_CAPABILITY)

// Source and destination of an elementwise loop are the same or do not overlap.
#if defined(__GNUC__) && !defined(__clang__)
#define HORIZON_ELEMENTWISE _Pragma("GCC ivdep")
#else
#define HORIZON_ELEMENTWISE
#endif

namespace horizon::cpu::HORIZON_CAPABILITY {
namespace {

[[maybe_unused]] HORIZON_HD float bits_to_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

[[maybe_unused]] HORIZON_HD uint32_t float_to_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

[[maybe_unused]] HORIZON_HD float to_float(BFloat16 x) {
  return bits_to_float(static_cast<uint32_t>(x.bits) << 16);
}

[[maybe_unused]] HORIZON_HD BFloat16 to_bfloat16(float x) {
  const uint32_t bits = float_to_bits(x);
  const uint32_t rounded = (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x40U;
  return {static_cast<uint16_t>((bits & 0x7FFFFFFFU) > 0x7F800000U ? quiet : rounded)};
}

[[maybe_unused]] HORIZON_HD float to_float(Half x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000U) << 16;
  const uint32_t rest = x.bits & 0x7FFFU;
  const uint32_t normal = (rest << 13) + 0x38000000U;
  // Subnormals are multiples of 2^-24, the last place of 1/2: no fp32 subnormal is met, so that
  // flushing them changes nothing.
  const uint32_t subnormal = float_to_bits(bits_to_float(0x3F000000U | rest) - 0.5F);
  const uint32_t quiet = rest > 0x7C00U ? 0x00400000U : 0U;
  const uint32_t special = (rest << 13) | 0x7F800000U | quiet;
  uint32_t value = rest < 0x0400U ? subnormal : normal;
  value = rest >= 0x7C00U ? special : value;
  return bits_to_float(sign | value);
}

[[maybe_unused]] HORIZON_HD Half to_half(float x) {
  const uint32_t bits = float_to_bits(x);
  const uint32_t sign = (bits >> 16) & 0x8000U;
  const uint32_t rest = bits & 0x7FFFFFFFU;
  // Normal results: drop 13 bits, half to even; a carry may turn the largest into infinity.
  const uint32_t rebiased = rest - 0x38000000U;
  const uint32_t normal = (rebiased + 0x0FFFU + ((rebiased >> 13) & 1U)) >> 13;
  // Subnormal results: adding 1/2 leaves the rounded multiple of 2^-24 in the low bits.
  const uint32_t subnormal = float_to_bits(bits_to_float(rest) + 0.5F) - 0x3F000000U;
  const uint32_t nan = 0x7E00U | ((rest >> 13) & 0x3FFU);
  uint32_t value = rest < 0x38800000U ? subnormal : normal;
  value = rest >= 0x477FF000U ? 0x7C00U : value;
  value = rest > 0x7F800000U ? nan : value;
  return {static_cast<uint16_t>(sign | value)};
}

// One block; `from` and `to` do not overlap.
[[maybe_unused]] inline void load_block(const BFloat16* from, float* to) {
  HORIZON_ELEMENTWISE
  for (int i = 0; i < kBlock; ++i) to[i] = to_float(from[i]);
}

[[maybe_unused]] inline void store_block(const float* from, BFloat16* to) {
  HORIZON_ELEMENTWISE
  for (int i = 0; i < kBlock; ++i) to[i] = to_bfloat16(from[i]);
}

[[maybe_unused]] inline void load_block(const Half* from, float* to) {
#if defined(__F16C__)
  for (int i = 0; i < kBlock; i += 8) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(bits));
  }
#else
  HORIZON_ELEMENTWISE
  for (int i = 0; i < kBlock; ++i) to[i] = to_float(from[i]);
#endif
}

[[maybe_unused]] inline void store_block(const float* from, Half* to) {
#if defined(__F16C__)
  for (int i = 0; i < kBlock; i += 8) {
    const __m128i bits = _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), bits);
  }
#else
  HORIZON_ELEMENTWISE
  for (int i = 0; i < kBlock; ++i) to[i] = to_half(from[i]);
#endif
}

/// Calls `body` with a null pointer of the storage type.
template <typename Body>
HORIZON_HD void visit(FloatType type, Body&& body) {
  switch (type) {
    case FloatType::kFloat:
      return body(static_cast<float*>(nullptr));
    case FloatType::kDouble:
      return body(static_cast<double*>(nullptr));
    case FloatType::kHalf:
      return body(static_cast<Half*>(nullptr));
    case FloatType::kBFloat16:
      return body(static_cast<BFloat16*>(nullptr));
  }
}

}  // namespace
}  // namespace horizon::cpu::HORIZON_CAPABILITY

#endif
