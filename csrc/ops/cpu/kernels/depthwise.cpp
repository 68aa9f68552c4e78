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

void accumulate(const GatherGeometry& g, const int32_t* weight, const uint8_t* padding,
                int64_t first, int64_t rows, int32_t* acc) {
  const int64_t channels = g.channels;
  const uint8_t* taps[kMaxDepthwiseTaps];
  GridPosition at(g, first);
  for (int64_t r = 0; r < rows; ++r, at.advance(g), acc += channels) {
    for (int64_t t = 0; t < g.taps; ++t) {
      const int64_t y = at.i * g.step_y + g.tap_y[t];
      const int64_t x = at.j * g.step_x + g.tap_x[t];
      const bool in = inside(y, g.height) && inside(x, g.width);
      taps[t] = in ? codes_at(g, at.n, y, x) : padding;
    }
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

}  // namespace

const DepthwiseKernels& depthwise_kernels() {
  static const DepthwiseKernels table{accumulate};
  return table;
}

}  // namespace horizon::cpu::HORIZON_CAPABILITY
