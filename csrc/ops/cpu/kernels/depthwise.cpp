#include "ops/cpu/kernels/depthwise.h"

#include "ops/cpu/kernels/gather.h"
#include "ops/cpu/kernels/int_vector.h"

namespace horizon::cpu::HORIZON_CAPABILITY {
namespace {

constexpr int64_t kLanes = IntVector::kLanes;

constexpr int64_t kUnrolledTaps = 9;

/// One vector of channels of `count` pixels that are `step` bytes apart. With kTaps the weights
/// stay in registers; 0 leaves the number to `taps`.
///
/// A code fills one 32-bit lane and its weight another, so a 16-bit pair product whose second half
/// is 0 times anything multiplies them in one instruction.
template <int64_t kTaps>
HORIZON_INLINE void accumulate_lanes(const uint8_t* const* pixel, int64_t taps, int64_t step,
                                     int64_t count, const int32_t* weight, int64_t channels,
                                     int64_t c, int32_t* acc) {
  if constexpr (kTaps > 0) {
    IntVector w[kTaps];
    const uint8_t* codes[kTaps];
    for (int64_t t = 0; t < kTaps; ++t) {
      w[t] = IntVector::load(weight + t * channels + c);
      codes[t] = pixel[t] + c;
    }
    for (int64_t p = 0; p < count; ++p) {
      IntVector sum = IntVector::zero();
#pragma GCC unroll 9
      for (int64_t t = 0; t < kTaps; ++t) {
        sum = sum.add_pairs(IntVector::load_codes(codes[t] + p * step), w[t]);
      }
      sum.store(acc + p * channels + c);
    }
  } else {
    for (int64_t p = 0; p < count; ++p) {
      IntVector sum = IntVector::zero();
      for (int64_t t = 0; t < taps; ++t) {
        sum = sum.add_pairs(IntVector::load_codes(pixel[t] + p * step + c),
                            IntVector::load(weight + t * channels + c));
      }
      sum.store(acc + p * channels + c);
    }
  }
}

template <int64_t kTaps>
void accumulate_pixels(const uint8_t* const* pixel, int64_t taps, int64_t step, int64_t count,
                       const int32_t* weight, int64_t channels, int32_t* acc) {
  int64_t c = 0;
  for (; c + kLanes <= channels; c += kLanes) {
    accumulate_lanes<kTaps>(pixel, taps, step, count, weight, channels, c, acc);
  }
  if (c == channels) return;
  if (channels > kLanes) {
    // Overlaps its neighbour and writes the same sums again.
    accumulate_lanes<kTaps>(pixel, taps, step, count, weight, channels, channels - kLanes, acc);
    return;
  }
  for (int64_t p = 0; p < count; ++p) {
    for (c = 0; c < channels; ++c) {
      int32_t sum = 0;
      for (int64_t t = 0; t < taps; ++t) {
        sum += pixel[t][p * step + c] * weight[t * channels + c];
      }
      acc[p * channels + c] = sum;
    }
  }
}

/// The pixels that the taps of successive rows read.
class TapPixels {
 public:
  HORIZON_INLINE TapPixels(const GatherGeometry& geometry, const uint8_t* padding, int64_t first)
      : g_(geometry), padding_(padding), at_(geometry, first) {
    low_ = g_.taps > 0 ? g_.tap_x[0] : 0;
    high_ = low_;
    for (int64_t t = 0; t < g_.taps; ++t) {
      low_ = g_.tap_x[t] < low_ ? g_.tap_x[t] : low_;
      high_ = g_.tap_x[t] > high_ ? g_.tap_x[t] : high_;
    }
    find();
  }

  HORIZON_INLINE const uint8_t* const* data() const { return pixels_; }

  /// How many positions from here on, of at most `limit`, read pixels one step apart.
  HORIZON_INLINE int64_t run(int64_t limit) const {
    const int64_t x = at_.j * g_.step_x;
    if (x + low_ < 0 || x + high_ >= g_.width) return 1;
    for (int64_t t = 0; t < g_.taps; ++t) {
      if (pixels_[t] == padding_) return 1;
    }
    const int64_t last = (g_.width - 1 - high_) / g_.step_x;
    const int64_t end = last + 1 < g_.grid_width ? last + 1 : g_.grid_width;
    return end - at_.j < limit ? end - at_.j : limit;
  }

  /// Over `count` positions of a run.
  HORIZON_INLINE void advance(int64_t count) {
    at_.j += count - 1;
    at_.advance(g_);
    find();
  }

 private:
  HORIZON_INLINE void find() {
    // Past the last row nothing is read.
    for (int64_t t = 0; t < g_.taps; ++t) {
      const int64_t y = at_.i * g_.step_y + g_.tap_y[t];
      const int64_t x = at_.j * g_.step_x + g_.tap_x[t];
      const bool in = inside(y, g_.height) && inside(x, g_.width);
      pixels_[t] = in ? codes_at(g_, at_.n, y, x) : padding_;
    }
  }

  const GatherGeometry& g_;
  const uint8_t* padding_;
  GridPosition at_;
  int64_t low_, high_;
  const uint8_t* pixels_[kMaxDepthwiseTaps];
};

void depthwise(const GatherGeometry& g, const int32_t* weight, const uint8_t* padding,
               int64_t first, int64_t rows, int32_t* acc) {
  const int64_t step = g.step_x * g.channels;
  TapPixels pixels(g, padding, first);
  while (rows > 0) {
    const int64_t count = pixels.run(rows);
    const auto accumulate =
        g.taps == kUnrolledTaps ? accumulate_pixels<kUnrolledTaps> : accumulate_pixels<0>;
    accumulate(pixels.data(), g.taps, step, count, weight, g.channels, acc);
    pixels.advance(count);
    rows -= count;
    acc += count * g.channels;
  }
}

void grouped(const GatherGeometry& g, const int32_t* channel, int64_t out_channels,
             const int32_t* weight, const uint8_t* padding, const uint8_t* last, int64_t first,
             int64_t rows, int32_t* acc) {
  const int64_t blocks = (out_channels + kLanes - 1) / kLanes;
  const int64_t steps = (g.group_channels + 3) / 4;
  const IntVector low_bytes = IntVector::broadcast(0x00FF00FF);
  TapPixels pixels(g, padding, first);
  const uint8_t* tap[kMaxDepthwiseTaps];
  for (int64_t r = 0; r < rows; ++r, pixels.advance(1), acc += blocks * kLanes) {
    for (int64_t t = 0; t < g.taps; ++t) {
      const uint8_t* pixel = pixels.data()[t];
      tap[t] = pixel == g.last_pixel ? last : pixel;
    }
    for (int64_t b = 0; b < blocks; ++b) {
      const IntVector from = IntVector::load(channel + b * kLanes);
      IntVector even = IntVector::zero();
      IntVector odd = IntVector::zero();
      for (int64_t t = 0; t < g.taps; ++t) {
        for (int64_t s = 0; s < steps; ++s) {
          const int32_t* w = weight + ((t * steps + s) * blocks + b) * 2 * kLanes;
          const IntVector four = IntVector::gather_bytes(tap[t] + 4 * s, from);
          even = even.add_pairs(four.bit_and(low_bytes), IntVector::load(w));
          odd =
              odd.add_pairs(four.shifted_right_8().bit_and(low_bytes), IntVector::load(w + kLanes));
        }
      }
      even.add(odd).store(acc + b * kLanes);
    }
  }
}

}  // namespace

const DepthwiseKernels& depthwise_kernels() {
  static const DepthwiseKernels table{kLanes, depthwise, grouped};
  return table;
}

}  // namespace horizon::cpu::HORIZON_CAPABILITY
