#pragma once

#include <cstdint>
#include <cstring>

#include "ops/cpu/kernels/gemm.h"
#include "ops/cpu/kernels/int_vector.h"

// Copies input codes into rows of a matrix. For kernel files only.
namespace horizon::cpu::HORIZON_CAPABILITY {
namespace {

/// A position of the output grid, advanced row by row.
struct GridPosition {
  int64_t n, i, j;

  HORIZON_INLINE GridPosition(const GatherGeometry& g, int64_t row)
      : n(row / (g.grid_height * g.grid_width)),
        i(row / g.grid_width % g.grid_height),
        j(row % g.grid_width) {}

  HORIZON_INLINE void advance(const GatherGeometry& g) {
    if (++j < g.grid_width) return;
    j = 0;
    if (++i < g.grid_height) return;
    i = 0;
    ++n;
  }
};

/// The codes of channel `first_channel` on at (y, x) of image n; y and x inside.
HORIZON_INLINE const uint8_t* codes_at(const GatherGeometry& g, int64_t n, int64_t y, int64_t x) {
  return g.input + ((n * g.height + y) * g.width + x) * g.channels + g.first_channel;
}

HORIZON_INLINE bool inside(int64_t at, int64_t size) {
  return static_cast<uint64_t>(at) < static_cast<uint64_t>(size);
}

/// Entries of A are the codes themselves.
struct PlainEntry {
  using Type = uint8_t;

  /// May read and write up to 32 bytes beyond where that is still before `end`.
  static HORIZON_INLINE void copy(const uint8_t* from, int64_t count, const uint8_t* end,
                                  int32_t /*zero_point*/, uint8_t* to) {
    int64_t c = 0;
    for (; c + 64 <= count; c += 64) std::memcpy(to + c, from + c, 64);
    for (; c < count && end - from >= c + 32; c += 32) std::memcpy(to + c, from + c, 32);
    for (; c < count; ++c) to[c] = from[c];
  }
  static HORIZON_INLINE void pad(int64_t count, int32_t zero_point, uint8_t* to) {
    for (int64_t c = 0; c < count; ++c) to[c] = static_cast<uint8_t>(zero_point);
  }
};

/// Entries of A are q - z in 16 bits.
struct CentredEntry {
  using Type = int16_t;

  static HORIZON_INLINE void copy(const uint8_t* from, int64_t count, const uint8_t* /*end*/,
                                  int32_t zero_point, int16_t* to) {
    const auto z = static_cast<int16_t>(zero_point);
    for (int64_t c = 0; c < count; ++c) to[c] = static_cast<int16_t>(from[c] - z);
  }
  static HORIZON_INLINE void pad(int64_t count, int32_t /*zero_point*/, int16_t* to) {
    for (int64_t c = 0; c < count; ++c) to[c] = 0;
  }
};

template <typename Entry>
void gather_rows(const GatherGeometry& g, int64_t first, int64_t rows, void* a) {
  using Type = typename Entry::Type;
  auto* out = static_cast<Type*>(a);
  const int64_t channels = g.group_channels;
  const int64_t used = g.taps * channels;
  GridPosition at(g, first);
  for (int64_t r = 0; r < rows; ++r, at.advance(g), out += g.depth) {
    const int64_t y0 = at.i * g.step_y;
    const int64_t x0 = at.j * g.step_x;
    Type* to = out;
    for (int64_t t = 0; t < g.taps; t += g.run) {
      const int64_t y = y0 + g.tap_y[t];
      const int64_t x = x0 + g.tap_x[t];
      if (inside(y, g.height) && x >= 0 && x + g.run <= g.width) {
        Entry::copy(codes_at(g, at.n, y, x), g.run * channels, g.input_end, g.zero_point, to);
        to += g.run * channels;
        continue;
      }
      for (int64_t u = 0; u < g.run; ++u, to += channels) {
        if (inside(y, g.height) && inside(x + u, g.width)) {
          Entry::copy(codes_at(g, at.n, y, x + u), channels, g.input_end, g.zero_point, to);
        } else {
          Entry::pad(channels, g.zero_point, to);
        }
      }
    }
    for (int64_t k = used; k < g.depth; ++k) out[k] = 0;
  }
}

}  // namespace
}  // namespace horizon::cpu::HORIZON_CAPABILITY
