#include "ops/cpu/kernels/depthwise.h"

#include "ops/cpu/kernels/gather.h"
#include "ops/cpu/kernels/int_vector.h"

namespace horizon::cpu::HORIZON_CAPABILITY {
namespace {

constexpr int64_t kLanes = IntVector::kLanes;

/// A code fills one 32-bit lane and its weight another, so a 16-bit pair product whose second half
/// is 0 times anything multiplies them in one instruction.
template <int kBlocks>
HORIZON_INLINE void accumulate_block(const uint8_t* const* taps, int64_t count,
                                     const int32_t* weight, int64_t channels, int64_t c,
                                     int32_t* acc) {
  IntVector sum[kBlocks];
#pragma GCC unroll 4
  for (int b = 0; b < kBlocks; ++b) sum[b] = IntVector::zero();
  for (int64_t t = 0; t < count; ++t) {
    const uint8_t* codes = taps[t] + c;
    const int32_t* w = weight + t * channels + c;
#pragma GCC unroll 4
    for (int b = 0; b < kBlocks; ++b) {
      sum[b] = sum[b].add_pairs(IntVector::load_codes(codes + b * kLanes),
                                IntVector::load(w + b * kLanes));
    }
  }
#pragma GCC unroll 4
  for (int b = 0; b < kBlocks; ++b) sum[b].store(acc + c + b * kLanes);
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

  HORIZON_INLINE void advance() {
    const int64_t row = at_.i;
    const int64_t image = at_.n;
    at_.advance(g_);
    const int64_t x = at_.j * g_.step_x;
    const bool same_row = row == at_.i && image == at_.n && at_.j > 0;
    if (same_row && x - g_.step_x + low_ >= 0 && x + high_ < g_.width) {
      const int64_t step = g_.step_x * g_.channels;
      for (int64_t t = 0; t < g_.taps; ++t) {
        if (pixels_[t] != padding_) pixels_[t] += step;
      }
      return;
    }
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
  const int64_t channels = g.channels;
  TapPixels pixels(g, padding, first);
  for (int64_t r = 0; r < rows; ++r, pixels.advance(), acc += channels) {
    const uint8_t* const* taps = pixels.data();
    int64_t c = 0;
    for (; c + 4 * kLanes <= channels; c += 4 * kLanes) {
      accumulate_block<4>(taps, g.taps, weight, channels, c, acc);
    }
    for (; c + kLanes <= channels; c += kLanes) {
      accumulate_block<1>(taps, g.taps, weight, channels, c, acc);
    }
    for (; c < channels; ++c) {
      int32_t sum = 0;
      for (int64_t t = 0; t < g.taps; ++t) sum += taps[t][c] * weight[t * channels + c];
      acc[c] = sum;
    }
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
  for (int64_t r = 0; r < rows; ++r, pixels.advance(), acc += blocks * kLanes) {
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
