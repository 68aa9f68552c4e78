#include "ops/cpu/kernels/observe.h"

// Floats are compared as integers: they keep their order and, unlike float comparisons, put NaN
// beyond the infinities, so that no minimum or maximum loses it and loops vectorize.

namespace horizon::cpu::HORIZON_CAPABILITY {
namespace {

template <typename T>
using BitsOf = std::conditional_t<sizeof(T) == 8, int64_t,
                                  std::conditional_t<sizeof(T) == 4, int32_t, int16_t>>;

template <typename I>
inline constexpr int kTopBit = static_cast<int>(sizeof(I)) * 8 - 1;

template <typename I>
inline constexpr I kMagnitude = static_cast<I>(~(static_cast<uint64_t>(1) << kTopBit<I>));

/// Sign and magnitude to two's complement, and back: its own inverse.
template <typename I>
HORIZON_HD I order_key(I bits) {
  return static_cast<I>(bits ^ ((bits >> kTopBit<I>)&kMagnitude<I>));
}

HORIZON_HD double value_of(int64_t bits, double*) {
  double value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
HORIZON_HD double value_of(int32_t bits, float*) {
  return static_cast<double>(bits_to_float(static_cast<uint32_t>(bits)));
}
HORIZON_HD double value_of(int16_t bits, Half*) {
  return static_cast<double>(to_float(Half{static_cast<uint16_t>(bits)}));
}
HORIZON_HD double value_of(int16_t bits, BFloat16*) {
  return static_cast<double>(to_float(BFloat16{static_cast<uint16_t>(bits)}));
}

template <typename I>
HORIZON_HD I larger(I a, I b) {
  return a < b ? b : a;
}
template <typename I>
HORIZON_HD I smaller(I a, I b) {
  return b < a ? b : a;
}

void min_max(FloatType type, const void* x, int64_t count, double* lo, double* hi) {
  visit(type, [&](auto* tag) {
    using I = BitsOf<std::remove_pointer_t<decltype(tag)>>;
    const I* bits = static_cast<const I*>(x);
    I least = order_key(bits[0]);
    I most = least;
    for (int64_t i = 0; i < count; ++i) {
      const I key = order_key(bits[i]);
      least = smaller(least, key);
      most = larger(most, key);
    }
    *lo = value_of(order_key(least), tag);
    *hi = value_of(order_key(most), tag);
    if (*lo != *lo) *hi = *lo;
    if (*hi != *hi) *lo = *hi;
  });
}

// Positions of [channels, inner] that are reduced over `outer` together.
inline constexpr int64_t kTile = 512;
// Shorter runs of one channel are reduced by position instead.
inline constexpr int64_t kRun = 64;

template <typename I>
HORIZON_HD I run_abs_max(const I* bits, int64_t count, I most) {
  for (int64_t i = 0; i < count; ++i) {
    most = larger(most, static_cast<I>(bits[i] & kMagnitude<I>));
  }
  return most;
}

template <typename I, typename T>
void abs_max_by_position(const I* bits, int64_t outer, int64_t channels, int64_t inner,
                         int64_t begin, int64_t end, double* out, T* tag) {
  const int64_t first = begin * inner;
  const int64_t last = end * inner;
  I channel_most = 0;
  int64_t c = begin;
  int64_t left = inner;
  for (int64_t start = first; start < last; start += kTile) {
    const int64_t size = last - start < kTile ? last - start : kTile;
    alignas(64) I most[kTile] = {};
    for (int64_t o = 0; o < outer; ++o) {
      const I* row = bits + o * channels * inner + start;
      HORIZON_ELEMENTWISE
      for (int64_t i = 0; i < size; ++i) {
        most[i] = larger(most[i], static_cast<I>(row[i] & kMagnitude<I>));
      }
    }
    for (int64_t i = 0; i < size; ++i) {
      channel_most = larger(channel_most, most[i]);
      if (--left == 0) {
        out[c++] = value_of(channel_most, tag);
        channel_most = 0;
        left = inner;
      }
    }
  }
}

void channel_abs_max(FloatType type, const void* x, int64_t outer, int64_t channels, int64_t inner,
                     int64_t begin, int64_t end, double* out) {
  visit(type, [&](auto* tag) {
    using I = BitsOf<std::remove_pointer_t<decltype(tag)>>;
    const I* bits = static_cast<const I*>(x);
    if (outer > 1 && inner > 0 && inner < kRun) {
      abs_max_by_position(bits, outer, channels, inner, begin, end, out, tag);
      return;
    }
    for (int64_t c = begin; c < end; ++c) {
      I most = 0;
      for (int64_t o = 0; o < outer; ++o) {
        most = run_abs_max(bits + (o * channels + c) * inner, inner, most);
      }
      out[c] = value_of(most, tag);
    }
  });
}

}  // namespace

const ObserveKernels& observe_kernels() {
  static const ObserveKernels table{&min_max, &channel_abs_max};
  return table;
}

}  // namespace horizon::cpu::HORIZON_CAPABILITY
