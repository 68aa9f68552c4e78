#pragma once

#include <cstdint>

#include "ops/cpu/kernels/fused.h"

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

#pragma GCC diagnostic ignored "-Wpsabi"

/// Groups of 128 bytes of elements in native registers. The number of lanes is the same on every
/// instruction set, so that sums have one order and therefore one result.
namespace horizon::cpu::HORIZON_CAPABILITY {

#if defined(__AVX512F__)
inline constexpr int kRegisterBytes = 64;
#elif defined(__AVX2__)
inline constexpr int kRegisterBytes = 32;
#else
inline constexpr int kRegisterBytes = 16;
#endif

template <typename T>
inline constexpr int kLanes = 128 / static_cast<int>(sizeof(T));

/// Groups that a walk down the rows of a tile takes side by side: as many as registers hold, so
/// that it reads long runs of memory. A lane's sum is the same for any number.
#if defined(__AVX512F__)
inline constexpr int kWideGroups = 4;
#else
inline constexpr int kWideGroups = 1;
#endif

/// Rows that such a walk asks for ahead: a stride is more than hardware prefetchers follow.
inline constexpr int64_t kRowsAhead = 8;

/// Elements of one pass over temporaries that stay in the first-level cache.
inline constexpr int64_t kBlock = 256;

template <typename T>
struct Register;
template <>
struct Register<float> {
  using Int = int32_t;
  typedef float Vec __attribute__((vector_size(kRegisterBytes)));
  typedef float Unaligned __attribute__((vector_size(kRegisterBytes), aligned(4), may_alias));
  typedef int32_t Bits __attribute__((vector_size(kRegisterBytes)));
};
template <>
struct Register<double> {
  using Int = int64_t;
  typedef double Vec __attribute__((vector_size(kRegisterBytes)));
  typedef double Unaligned __attribute__((vector_size(kRegisterBytes), aligned(8), may_alias));
  typedef int64_t Bits __attribute__((vector_size(kRegisterBytes)));
};

template <typename T>
struct Lanes {
  using Vec = typename Register<T>::Vec;
  using Unaligned = typename Register<T>::Unaligned;
  using Bits = typename Register<T>::Bits;
  using Int = typename Register<T>::Int;
  static constexpr int kWidth = kRegisterBytes / static_cast<int>(sizeof(T));
  static constexpr int kCount = kLanes<T> / kWidth;

  Vec v[kCount];

  HORIZON_HD void fill(T value) {
    for (int i = 0; i < kCount; ++i) v[i] = Vec{} + value;
  }
  HORIZON_HD void load(const T* p) {
    for (int i = 0; i < kCount; ++i) v[i] = *reinterpret_cast<const Unaligned*>(p + i * kWidth);
  }
  HORIZON_HD void store(T* p) const {
    for (int i = 0; i < kCount; ++i) *reinterpret_cast<Unaligned*>(p + i * kWidth) = v[i];
  }
  /// Asks for the lines that `load` will read; any address will do.
  static HORIZON_HD void prefetch(const T* p) {
    for (int i = 0; i < 128; i += 64) {
      __builtin_prefetch(reinterpret_cast<const char*>(p) + i);
    }
  }
  /// Loads p where the bit is set, 0 elsewhere.
  HORIZON_HD void load_masked(const T* p, uint32_t bits) {
    Bits position;
    for (int j = 0; j < kWidth; ++j) position[j] = Int{1} << j;
    for (int i = 0; i < kCount; ++i) {
      const Bits word = Bits{} + static_cast<Int>(bits >> (i * kWidth));
      const Vec x = *reinterpret_cast<const Unaligned*>(p + i * kWidth);
      v[i] = (word & position) != 0 ? x : Vec{};
    }
  }
  HORIZON_HD void add(const Lanes& x) {
    for (int i = 0; i < kCount; ++i) v[i] += x.v[i];
  }
  HORIZON_HD void subtract(const Lanes& x) {
    for (int i = 0; i < kCount; ++i) v[i] -= x.v[i];
  }
  HORIZON_HD void add_product(const Lanes& x, const Lanes& y) {
    for (int i = 0; i < kCount; ++i) v[i] += x.v[i] * y.v[i];
  }
  HORIZON_HD void lower(const Lanes& x) {
    for (int i = 0; i < kCount; ++i) v[i] = ((x.v[i] < v[i]) | (x.v[i] != x.v[i])) ? x.v[i] : v[i];
  }
  HORIZON_HD void raise(const Lanes& x) {
    for (int i = 0; i < kCount; ++i) v[i] = ((x.v[i] > v[i]) | (x.v[i] != x.v[i])) ? x.v[i] : v[i];
  }
};

/// The mask bits of one group of lanes; `mask` points at its first byte.
template <typename T>
HORIZON_HD uint32_t mask_word(const uint8_t* mask) {
  uint32_t bits = 0;
  __builtin_memcpy(&bits, mask, kLanes<T> / 8);
  return bits;
}

HORIZON_HD bool mask_bit(const uint8_t* mask, int64_t i) {
  return ((mask[i / 8] >> (i % 8)) & 1) != 0;
}

template <typename T>
HORIZON_HD T lower_of(T a, T x) {
  return (x < a || x != x) ? x : a;
}
template <typename T>
HORIZON_HD T higher_of(T a, T x) {
  return (x > a || x != x) ? x : a;
}

// Filled into the table by fused.cpp.
template <typename T>
void add_forward(FusedKernelsOf<T>& table);
template <typename T>
void add_statistics(FusedKernelsOf<T>& table);
template <typename T>
void add_backward(FusedKernelsOf<T>& table);

}  // namespace horizon::cpu::HORIZON_CAPABILITY
