#include "ops/cpu/kernels/max_pool.h"

#include <cstring>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "ops/cpu/kernels/int_vector.h"

namespace horizon::cpu::HORIZON_CAPABILITY {
namespace {

#if defined(__SSE2__)

struct Codes16 {
  static constexpr int64_t kLanes = 16;
  __m128i v;

  static HORIZON_INLINE Codes16 load(const uint8_t* p) {
    return {_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))};
  }
  HORIZON_INLINE Codes16 max(Codes16 other) const { return {_mm_max_epu8(v, other.v)}; }
  HORIZON_INLINE void store(uint8_t* p) const {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), v);
  }
};

#else

struct Codes16 {
  static constexpr int64_t kLanes = 16;
  uint8_t v[kLanes];

  static HORIZON_INLINE Codes16 load(const uint8_t* p) {
    Codes16 out;
    std::memcpy(out.v, p, kLanes);
    return out;
  }
  HORIZON_INLINE Codes16 max(const Codes16& other) const {
    Codes16 out;
    for (int64_t i = 0; i < kLanes; ++i) out.v[i] = v[i] > other.v[i] ? v[i] : other.v[i];
    return out;
  }
  HORIZON_INLINE void store(uint8_t* p) const { std::memcpy(p, v, kLanes); }
};

#endif

#if defined(__AVX512BW__)

struct CodesVector {
  static constexpr int64_t kLanes = 64;
  __m512i v;

  static HORIZON_INLINE CodesVector load(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
  HORIZON_INLINE CodesVector max(CodesVector other) const { return {_mm512_max_epu8(v, other.v)}; }
  HORIZON_INLINE void store(uint8_t* p) const { _mm512_storeu_si512(p, v); }
};

#elif defined(__AVX2__)

struct CodesVector {
  static constexpr int64_t kLanes = 32;
  __m256i v;

  static HORIZON_INLINE CodesVector load(const uint8_t* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))};
  }
  HORIZON_INLINE CodesVector max(CodesVector other) const { return {_mm256_max_epu8(v, other.v)}; }
  HORIZON_INLINE void store(uint8_t* p) const {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v);
  }
};

#else

using CodesVector = Codes16;

#endif

template <typename Vector>
HORIZON_INLINE void max_block(const uint8_t* from, int64_t step, int64_t taps, uint8_t* to) {
  Vector most = Vector::load(from);
  for (int64_t t = 1; t < taps; ++t) most = most.max(Vector::load(from + t * step));
  most.store(to);
}

/// to[i] is the largest of from[i + t * step], t < taps; taps >= 1, and `to` overlaps no input.
HORIZON_INLINE void max_taps(const uint8_t* from, int64_t step, int64_t taps, int64_t count,
                             uint8_t* to) {
  int64_t i = 0;
  for (; i + CodesVector::kLanes <= count; i += CodesVector::kLanes) {
    max_block<CodesVector>(from + i, step, taps, to + i);
  }
  for (; i + Codes16::kLanes <= count; i += Codes16::kLanes) {
    max_block<Codes16>(from + i, step, taps, to + i);
  }
  if (i < count && count >= Codes16::kLanes) {
    // The last block overlaps its neighbour and writes the same results again.
    i = count - Codes16::kLanes;
    max_block<Codes16>(from + i, step, taps, to + i);
    return;
  }
  for (; i < count; ++i) {
    uint8_t most = from[i];
    for (int64_t t = 1; t < taps; ++t) {
      most = most > from[i + t * step] ? most : from[i + t * step];
    }
    to[i] = most;
  }
}

/// The windows along x of a row [x size][channels].
void max_columns(const uint8_t* row, const MaxPoolAxis& axis, int64_t channels, uint8_t* scratch,
                 uint8_t* output) {
  const int64_t step = axis.dilation * channels;
  const auto single = [&](int64_t begin, int64_t end) {
    for (int64_t x = begin; x < end; ++x) {
      const ops::PoolTaps taps = ops::taps_inside(axis, x);
      if (taps.count == 0) {
        std::memset(output + x * channels, 0, channels);
      } else {
        max_taps(row + taps.first * channels, step, taps.count, channels, output + x * channels);
      }
    }
  };
  // The windows [whole, cut) have all their taps inside; neighbours of those are computed at once
  // where that fills the vectors better than the channels of one.
  const int64_t last = axis.size - 1 - (axis.kernel - 1) * axis.dilation + axis.padding;
  const int64_t whole = (axis.padding + axis.stride - 1) / axis.stride;
  int64_t cut = last < 0 ? 0 : last / axis.stride + 1;
  cut = cut < axis.count ? cut : axis.count;
  if (whole >= cut || (axis.stride > 1 && channels >= Codes16::kLanes)) {
    return single(0, axis.count);
  }
  single(0, whole);
  const uint8_t* from = row + (whole * axis.stride - axis.padding) * channels;
  uint8_t* to = output + whole * channels;
  const int64_t windows = cut - whole;
  if (axis.stride == 1) {
    max_taps(from, step, axis.kernel, windows * channels, to);
  } else {
    const int64_t starts = (windows - 1) * axis.stride + 1;
    max_taps(from, step, axis.kernel, starts * channels, scratch);
    if (channels == 1 && axis.stride == 2) {
      for (int64_t x = 0; x < windows; ++x) to[x] = scratch[2 * x];
    } else {
      for (int64_t x = 0; x < windows; ++x) {
        const uint8_t* pixel = scratch + x * axis.stride * channels;
        for (int64_t c = 0; c < channels; ++c) to[x * channels + c] = pixel[c];
      }
    }
  }
  single(cut, axis.count);
}

/// The maximum is taken along y first, over whole rows, then along x.
void max_row(const uint8_t* plane, const MaxPoolAxis& y_axis, const MaxPoolAxis& x_axis,
             int64_t channels, int64_t row, uint8_t* scratch, uint8_t* output) {
  const int64_t size = x_axis.size * channels;
  const ops::PoolTaps taps = ops::taps_inside(y_axis, row);
  if (taps.count == 0) {
    std::memset(output, 0, x_axis.count * channels);
    return;
  }
  const uint8_t* from = plane + taps.first * size;
  if (taps.count > 1) {
    max_taps(from, y_axis.dilation * size, taps.count, size, scratch);
    from = scratch;
  }
  max_columns(from, x_axis, channels, scratch + size, output);
}

}  // namespace

const MaxPoolKernels& max_pool_kernels() {
  static const MaxPoolKernels table{max_row};
  return table;
}

}  // namespace horizon::cpu::HORIZON_CAPABILITY
