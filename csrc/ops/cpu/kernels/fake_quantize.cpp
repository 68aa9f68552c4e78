#include "ops/cpu/kernels/fake_quantize.h"

#include "quant/fake_quantize.h"

namespace horizon::cpu::HORIZON_CAPABILITY {
namespace {

// Where the parameters of element i of a block come from.
template <typename C, typename WideProduct = float>
struct Uniform {
  using Product = WideProduct;
  C scale_, inv_scale_;
  int32_t zero_point_;
  int32_t lo, hi;

  HORIZON_HD explicit Uniform(const Grid& g)
      : scale_(g.scale), inv_scale_(g.inv_scale), zero_point_(g.zero_point), lo(g.lo), hi(g.hi) {}
  HORIZON_HD Uniform(const ChannelGrids& g, int64_t c)
      : Uniform(Grid{g.scale[c], g.inv_scale[c], g.zero_point[c], g.lo, g.hi}) {}
  HORIZON_HD C scale(int) const { return scale_; }
  HORIZON_HD C inv_scale(int) const { return inv_scale_; }
  HORIZON_HD int32_t zero_point(int) const { return zero_point_; }
};

template <typename C>
struct Varying {
  using Product = double;
  const float* scale_;
  const float* inv_scale_;
  const int32_t* zero_point_;
  int32_t lo, hi;

  HORIZON_HD C scale(int i) const { return static_cast<C>(scale_[i]); }
  HORIZON_HD C inv_scale(int i) const { return static_cast<C>(inv_scale_[i]); }
  HORIZON_HD int32_t zero_point(int i) const { return zero_point_[i]; }
};

// As wide as C, so that comparisons need no conversion: 0 or -1.
template <typename C>
using Flag = std::conditional_t<sizeof(C) == 8, int64_t, int32_t>;

HORIZON_HD uint8_t pack8(const int32_t* flags) {
#if defined(__AVX2__)
  const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(flags));
  return static_cast<uint8_t>(_mm256_movemask_ps(_mm256_castsi256_ps(v)));
#elif defined(__SSE2__)
  const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(flags));
  const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(flags + 4));
  const int low = _mm_movemask_ps(_mm_castsi128_ps(a));
  return static_cast<uint8_t>(low | (_mm_movemask_ps(_mm_castsi128_ps(b)) << 4));
#else
  unsigned byte = 0;
  for (int i = 0; i < 8; ++i) byte |= (flags[i] != 0 ? 1U : 0U) << i;
  return static_cast<uint8_t>(byte);
#endif
}

HORIZON_HD uint8_t pack8(const int64_t* flags) {
#if defined(__AVX2__)
  const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(flags));
  const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(flags + 4));
  const int low = _mm256_movemask_pd(_mm256_castsi256_pd(a));
  return static_cast<uint8_t>(low | (_mm256_movemask_pd(_mm256_castsi256_pd(b)) << 4));
#else
  unsigned byte = 0;
  for (int i = 0; i < 8; ++i) byte |= (flags[i] != 0 ? 1U : 0U) << i;
  return static_cast<uint8_t>(byte);
#endif
}

// One block in the compute type; `passes` is written only if kMask. A wide grid is compared in
// double: fp32 does not hold its ends.
template <bool kWide, bool kMask, typename C, typename Grids>
HORIZON_HD void quantize_block(const C* x, C* y, Flag<C>* passes, const Grids& g) {
  using Limit = std::conditional_t<kWide, double, C>;
  const Limit lo = static_cast<Limit>(g.lo);
  const Limit hi = static_cast<Limit>(g.hi);
  HORIZON_ELEMENTWISE
  for (int i = 0; i < kBlock; ++i) {
    const C v = x[i];
    const C z = static_cast<C>(g.zero_point(i));
    if constexpr (kMask) {
      passes[i] = quant::passes_gradient(v, g.inv_scale(i), z, lo, hi) ? -1 : 0;
    }
    if constexpr (kWide) {
      y[i] = quant::fake_quantize_wide<typename Grids::Product>(
          v, g.scale(i), g.inv_scale(i), z, static_cast<double>(g.zero_point(i)), lo, hi);
    } else {
      y[i] = quant::fake_quantize(v, g.scale(i), g.inv_scale(i), z, lo, hi);
    }
  }
}

// Asks for the block that is 4 KiB ahead: where results go into fresh pages, each page's fault
// interrupts the hardware's own prefetching.
template <typename T>
HORIZON_HD void prefetch_ahead(const T* x) {
  const char* ahead = reinterpret_cast<const char*>(x) + 4096;
  for (size_t i = 0; i < kBlock * sizeof(T); i += 64) __builtin_prefetch(ahead + i);
}

// One block in storage, or the last few elements: through a buffer, so that they take the same
// instructions.
template <bool kWide, bool kMask, typename T, typename Grids>
HORIZON_HD void store_quantized(const T* x, T* y, uint8_t* mask, int count, const Grids& g) {
  using C = ComputeOf<T>;
  prefetch_ahead(x);
  alignas(64) Flag<C> passes[kMask ? kBlock : 1];
  if constexpr (std::is_same_v<T, C>) {
    if (count == kBlock) {
      quantize_block<kWide, kMask>(x, y, passes, g);
    } else {
      alignas(64) C buffer[kBlock] = {};
      std::memcpy(buffer, x, sizeof(T) * static_cast<size_t>(count));
      quantize_block<kWide, kMask>(buffer, buffer, passes, g);
      std::memcpy(y, buffer, sizeof(T) * static_cast<size_t>(count));
    }
  } else {
    alignas(64) C buffer[kBlock];
    alignas(64) T storage[kBlock] = {};
    if (count == kBlock) {
      load_block(x, buffer);
    } else {
      std::memcpy(storage, x, sizeof(T) * static_cast<size_t>(count));
      load_block(storage, buffer);
    }
    quantize_block<kWide, kMask>(buffer, buffer, passes, g);
    if (count == kBlock) {
      store_block(buffer, y);
    } else {
      store_block(buffer, storage);
      std::memcpy(y, storage, sizeof(T) * static_cast<size_t>(count));
    }
  }
  if constexpr (kMask) {
    for (int i = count; i < kBlock; ++i) passes[i] = 0;
    for (int i = 0; i < count; i += 8) mask[i / 8] = pack8(passes + i);
  }
}

HORIZON_HD int block_size(int64_t position, int64_t end) {
  return end - position < kBlock ? static_cast<int>(end - position) : kBlock;
}

HORIZON_HD bool is_wide(int32_t value) {
  return value > quant::kNarrowGrid || value < -quant::kNarrowGrid;
}

// The zero point lies in [lo, hi].
HORIZON_HD bool is_wide(int32_t lo, int32_t hi) { return is_wide(lo) || is_wide(hi); }

// Calls body(position, count, grids) for each block, with Uniform where it has one channel and
// Varying elsewhere.
template <typename C, typename Body>
HORIZON_HD void for_channel_blocks(const ChannelGrids& g, int64_t begin, int64_t end, Body&& body) {
  for (int64_t position = begin; position < end; position += kBlock) {
    const int count = block_size(position, end);
    const int64_t row = position / g.inner;
    int64_t c = row % g.channels;
    if (g.inner == 1) {
      body(position, count, Varying<C>{g.scale + c, g.inv_scale + c, g.zero_point + c, g.lo, g.hi});
      continue;
    }
    int64_t offset = position - row * g.inner;
    if (offset + count <= g.inner) {
      body(position, count, Uniform<C, double>(g, c));
      continue;
    }
    alignas(64) float scale[kBlock];
    alignas(64) float inv_scale[kBlock];
    alignas(64) int32_t zero_point[kBlock];
    for (int i = 0; i < kBlock; ++i) {
      scale[i] = g.scale[c];
      inv_scale[i] = g.inv_scale[c];
      zero_point[i] = g.zero_point[c];
      if (++offset == g.inner) {
        offset = 0;
        if (++c == g.channels) c = 0;
      }
    }
    body(position, count, Varying<C>{scale, inv_scale, zero_point, g.lo, g.hi});
  }
}

template <bool kWide, bool kMask, typename T>
void run_per_tensor(const T* x, T* y, uint8_t* mask, int64_t begin, int64_t end, const Grid& grid) {
  using C = ComputeOf<T>;
  const Uniform<C> g(grid);
  for (int64_t position = begin; position < end; position += kBlock) {
    store_quantized<kWide, kMask>(x + position, y + position, kMask ? mask + position / 8 : nullptr,
                                  block_size(position, end), g);
  }
}

template <bool kWide, bool kMask, typename T>
void run_per_channel(const T* x, T* y, uint8_t* mask, int64_t begin, int64_t end,
                     const ChannelGrids& grids) {
  using C = ComputeOf<T>;
  for_channel_blocks<C>(grids, begin, end, [&](int64_t position, int count, const auto& g) {
    store_quantized<kWide, kMask>(x + position, y + position, kMask ? mask + position / 8 : nullptr,
                                  count, g);
  });
}

// Calls body with the flags kWide and kMask as types; fp64 is never wide.
template <typename T, typename Body>
HORIZON_HD void with_flags(bool wide, bool mask, Body&& body) {
  if constexpr (!std::is_same_v<T, double>) {
    if (wide) {
      if (mask) return body(std::true_type(), std::true_type());
      return body(std::true_type(), std::false_type());
    }
  }
  if (mask) return body(std::false_type(), std::true_type());
  body(std::false_type(), std::false_type());
}

void per_tensor(FloatType type, const void* x, void* y, uint8_t* mask, int64_t begin, int64_t end,
                const Grid& grid) {
  visit(type, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    with_flags<T>(is_wide(grid.lo, grid.hi), mask != nullptr, [&](auto wide, auto masked) {
      run_per_tensor<decltype(wide)::value, decltype(masked)::value>(
          static_cast<const T*>(x), static_cast<T*>(y), mask, begin, end, grid);
    });
  });
}

void per_channel(FloatType type, const void* x, void* y, uint8_t* mask, int64_t begin, int64_t end,
                 const ChannelGrids& grids) {
  visit(type, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    with_flags<T>(is_wide(grids.lo, grids.hi), mask != nullptr, [&](auto wide, auto masked) {
      run_per_channel<decltype(wide)::value, decltype(masked)::value>(
          static_cast<const T*>(x), static_cast<T*>(y), mask, begin, end, grids);
    });
  });
}

#if defined(__AVX512F__)
// One block of 32-bit elements; the bits of a mask are those of a mask register.
HORIZON_HD void mask_block(const uint32_t* grad, const uint8_t* mask, uint32_t* out) {
  for (int i = 0; i < kBlock; i += 16) {
    uint16_t bits;
    std::memcpy(&bits, mask + i / 8, sizeof bits);
    _mm512_storeu_si512(out + i, _mm512_maskz_loadu_epi32(bits, grad + i));
  }
}
#elif defined(__AVX2__)
HORIZON_HD void mask_block(const uint32_t* grad, const uint8_t* mask, uint32_t* out) {
  const __m256i position = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  for (int i = 0; i < kBlock; i += 8) {
    const __m256i bits = _mm256_and_si256(_mm256_set1_epi32(mask[i / 8]), position);
    const __m256i keep = _mm256_cmpeq_epi32(bits, position);
    const __m256i g = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(grad + i));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), _mm256_and_si256(g, keep));
  }
}
#endif

template <typename U>
HORIZON_HD void mask_block(const U* grad, const uint8_t* mask, U* out) {
  for (int i = 0; i < kBlock; i += 8) {
    const U byte = mask[i / 8];
    HORIZON_ELEMENTWISE
    for (int j = 0; j < 8; ++j) {
      const U keep = static_cast<U>(0) - static_cast<U>((byte >> j) & 1U);
      out[i + j] = grad[i + j] & keep;
    }
  }
}

// On bit patterns: a gradient that does not pass is 0 even if it is NaN.
template <typename U>
void run_mask(const U* grad, const uint8_t* mask, U* out, int64_t begin, int64_t end) {
  int64_t i = begin;
  for (; i + kBlock <= end; i += kBlock) {
    prefetch_ahead(grad + i);
    mask_block(grad + i, mask + i / 8, out + i);
  }
  for (; i < end; ++i) out[i] = ((mask[i / 8] >> (i % 8)) & 1U) != 0 ? grad[i] : U{0};
}

void mask_gradient(FloatType type, const void* grad, const uint8_t* mask, void* out, int64_t begin,
                   int64_t end) {
  visit(type, [&](auto* tag) {
    constexpr size_t kSize = sizeof(*tag);
    using U = std::conditional_t<kSize == 8, uint64_t,
                                 std::conditional_t<kSize == 4, uint32_t, uint16_t>>;
    run_mask(static_cast<const U*>(grad), mask, static_cast<U*>(out), begin, end);
  });
}

// One block of codes; returns whether an element is NaN.
template <typename C, typename Code, typename Grids>
HORIZON_HD bool code_block(const C* x, Code* codes, const Grids& g) {
  const C lo = static_cast<C>(g.lo);
  const C hi = static_cast<C>(g.hi);
  Flag<C> nan = 0;
  HORIZON_ELEMENTWISE
  for (int i = 0; i < kBlock; ++i) {
    const C z = static_cast<C>(g.zero_point(i));
    const C q = quant::quantize_to_real(x[i], g.inv_scale(i), z, lo, hi);
    const bool is_nan = !(q == q);
    nan |= is_nan ? -1 : 0;
    codes[i] = static_cast<Code>(static_cast<int32_t>(is_nan ? z : q));
  }
  return nan != 0;
}

template <typename T, typename Code, typename Grids>
HORIZON_HD bool store_codes(const T* x, Code* codes, int count, const Grids& g) {
  using C = ComputeOf<T>;
  alignas(64) T storage[kBlock] = {};
  alignas(64) C buffer[kBlock];
  alignas(64) Code tail[kBlock];
  const T* from = x;
  if (count < kBlock) {
    std::memcpy(storage, x, sizeof(T) * static_cast<size_t>(count));
    from = storage;
  }
  bool nan = false;
  Code* to = count < kBlock ? tail : codes;
  if constexpr (std::is_same_v<T, C>) {
    nan = code_block(from, to, g);
  } else {
    load_block(from, buffer);
    nan = code_block(buffer, to, g);
  }
  if (count < kBlock) std::memcpy(codes, tail, sizeof(Code) * static_cast<size_t>(count));
  return nan;
}

bool quantize(FloatType type, const void* x, uint8_t* codes, int64_t begin, int64_t end,
              const Grid& grid) {
  bool nan = false;
  visit(type, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    const Uniform<ComputeOf<T>> g(grid);
    for (int64_t position = begin; position < end; position += kBlock) {
      nan |= store_codes(static_cast<const T*>(x) + position, codes + position,
                         block_size(position, end), g);
    }
  });
  return !nan;
}

bool quantize_channels(FloatType type, const void* x, int8_t* codes, int64_t begin, int64_t end,
                       const ChannelGrids& grids) {
  bool nan = false;
  visit(type, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    for_channel_blocks<ComputeOf<T>>(
        grids, begin, end, [&](int64_t position, int count, const auto& g) {
          nan |= store_codes(static_cast<const T*>(x) + position, codes + position, count, g);
        });
  });
  return !nan;
}

template <typename T>
void run_dequantize(const uint8_t* codes, T* y, int64_t begin, int64_t end, float scale,
                    int32_t zero_point) {
  using C = ComputeOf<T>;
  const C s = scale;
  for (int64_t position = begin; position < end; position += kBlock) {
    const int count = block_size(position, end);
    alignas(64) C buffer[kBlock];
    alignas(64) T storage[kBlock];
    alignas(64) uint8_t tail[kBlock] = {};
    const bool whole = count == kBlock;
    if (!whole) std::memcpy(tail, codes + position, static_cast<size_t>(count));
    const uint8_t* from = whole ? codes + position : tail;
    C* to = buffer;
    if constexpr (std::is_same_v<T, C>) to = whole ? y + position : buffer;
    HORIZON_ELEMENTWISE
    for (int i = 0; i < kBlock; ++i) {
      to[i] = quant::dequantize(from[i] - zero_point, s);
    }
    if constexpr (std::is_same_v<T, C>) {
      if (!whole) std::memcpy(y + position, buffer, sizeof(T) * static_cast<size_t>(count));
    } else {
      store_block(buffer, storage);
      std::memcpy(y + position, storage, sizeof(T) * static_cast<size_t>(count));
    }
  }
}

void dequantize(FloatType type, const uint8_t* codes, void* y, int64_t begin, int64_t end,
                float scale, int32_t zero_point) {
  visit(type, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    run_dequantize(codes, static_cast<T*>(y), begin, end, scale, zero_point);
  });
}

}  // namespace

const FakeQuantizeKernels& fake_quantize_kernels() {
  static const FakeQuantizeKernels table{&per_tensor, &per_channel,       &mask_gradient,
                                         &quantize,   &quantize_channels, &dequantize};
  return table;
}

}  // namespace horizon::cpu::HORIZON_CAPABILITY
