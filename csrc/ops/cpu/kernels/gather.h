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
  /// Reads and writes up to kReach bytes from a multiple of them on.
  static constexpr int64_t kReach = 32;
  static HORIZON_INLINE void copy_freely(const uint8_t* from, int64_t count, int32_t /*zero_point*/,
                                         uint8_t* to) {
    int64_t c = 0;
    for (; c + 64 <= count; c += 64) std::memcpy(to + c, from + c, 64);
    for (; c < count; c += kReach) std::memcpy(to + c, from + c, kReach);
  }
  static HORIZON_INLINE void clear_freely(int64_t count, uint8_t* to) {
    for (int64_t c = 0; c < count; c += kReach) std::memset(to + c, 0, kReach);
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
  static constexpr int64_t kReach = 1;
  static HORIZON_INLINE void copy_freely(const uint8_t* from, int64_t count, int32_t zero_point,
                                         int16_t* to) {
    copy(from, count, nullptr, zero_point, to);
  }
  static HORIZON_INLINE void clear_freely(int64_t count, int16_t* to) { pad(count, 0, to); }
  static HORIZON_INLINE void pad(int64_t count, int32_t /*zero_point*/, int16_t* to) {
    for (int64_t c = 0; c < count; ++c) to[c] = 0;
  }
};

/// The rows of a line of the grid whose taps all lie inside the image, without a test for each.
template <typename Entry>
class InsideRows {
 public:
  using Type = typename Entry::Type;

  HORIZON_INLINE explicit InsideRows(const GatherGeometry& g)
      : g_(g), runs_(g.taps / g.run), entries_(g.run * g.group_channels) {
    int64_t low = g.tap_x[0];
    int64_t high = low;
    for (int64_t t = 0; t < g.taps; ++t) {
      low = g.tap_x[t] < low ? g.tap_x[t] : low;
      high = g.tap_x[t] > high ? g.tap_x[t] : high;
    }
    first_ = low < 0 ? (-low + g.step_x - 1) / g.step_x : 0;
    end_ = g.width > high ? (g.width - 1 - high) / g.step_x + 1 : 0;
    end_ = end_ < g.grid_width ? end_ : g.grid_width;
  }

  /// Writes rows from a position on and returns how many of at most `rows`: none where this one's
  /// taps leave the image.
  HORIZON_INLINE int64_t gather(const GridPosition& at, int64_t rows, Type* out) const {
    if (runs_ > kMaxRuns || at.j < first_ || at.j >= end_) return 0;
    const int64_t count = end_ - at.j < rows ? end_ - at.j : rows;
    const int64_t step = g_.step_x * g_.channels;
    const int64_t reach =
        (count - 1) * step + (entries_ + Entry::kReach - 1) / Entry::kReach * Entry::kReach;
    const uint8_t* from[kMaxRuns];
    for (int64_t t = 0; t < runs_; ++t) {
      const int64_t y = at.i * g_.step_y + g_.tap_y[t * g_.run];
      if (!inside(y, g_.height)) return 0;
      from[t] = codes_at(g_, at.n, y, at.j * g_.step_x + g_.tap_x[t * g_.run]);
      if (g_.input_end - from[t] < reach) return 0;
    }
    for (int64_t r = 0; r < count; ++r, out += g_.depth) {
      Type* to = out;
      for (int64_t t = 0; t < runs_; ++t, to += entries_) {
        Entry::copy_freely(from[t] + r * step, entries_, g_.zero_point, to);
      }
      Entry::clear_freely(out + g_.depth - to, to);
    }
    return count;
  }

 private:
  static constexpr int64_t kMaxRuns = 16;
  const GatherGeometry& g_;
  int64_t runs_, entries_, first_, end_;
};

/// One row, tap by tap.
template <typename Entry>
HORIZON_INLINE void gather_row(const GatherGeometry& g, const GridPosition& at,
                               typename Entry::Type* out) {
  const int64_t channels = g.group_channels;
  auto* to = out;
  for (int64_t t = 0; t < g.taps; t += g.run) {
    const int64_t y = at.i * g.step_y + g.tap_y[t];
    const int64_t x = at.j * g.step_x + g.tap_x[t];
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
  for (; to < out + g.depth; ++to) *to = 0;
}

template <typename Entry>
void gather_rows(const GatherGeometry& g, int64_t first, int64_t rows, void* a) {
  auto* out = static_cast<typename Entry::Type*>(a);
  const InsideRows<Entry> inside_rows(g);
  GridPosition at(g, first);
  while (rows > 0) {
    int64_t count = inside_rows.gather(at, rows, out);
    if (count == 0) {
      gather_row<Entry>(g, at, out);
      count = 1;
    }
    at.j += count - 1;
    at.advance(g);
    rows -= count;
    out += count * g.depth;
  }
}

}  // namespace
}  // namespace horizon::cpu::HORIZON_CAPABILITY
