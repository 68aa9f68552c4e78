#pragma once

#include "ops/cuda/kernels/quantized_codes.h"
#include "ops/pool_windows.h"

// Poolings of images [images][height][width][channels]; a contiguous image is one of a single
// channel for every plane. A thread computes kPoolVector neighbouring channels of one window, and
// neighbouring threads read neighbouring channels.
namespace horizon::ops::cuda {

inline constexpr int kPoolVector = 4;

/// The images, and where a unit of work stands in the result.
struct PooledImages {
  int64_t images, height, width, channels;  ///< of the input
  int64_t rows, columns;                    ///< of the result

  struct Place {
    int64_t image, row, column, channel, count;
  };

  HORIZON_HD int64_t pieces() const { return (channels + kPoolVector - 1) / kPoolVector; }
  HORIZON_HD int64_t units() const { return images * rows * columns * pieces(); }

  HORIZON_HD Place place(int64_t unit) const {
    const int64_t window = quotient(unit, pieces());
    const int64_t channel = (unit - window * pieces()) * kPoolVector;
    const int64_t row = quotient(window, columns);
    const int64_t image = quotient(row, rows);
    const int64_t left = channels - channel;
    return {image, row - image * rows, window - row * columns, channel,
            left < kPoolVector ? left : kPoolVector};
  }
  HORIZON_HD int64_t input(const Place& p, int64_t y, int64_t x) const {
    return ((p.image * height + y) * width + x) * channels + p.channel;
  }
  HORIZON_HD int64_t output(const Place& p) const {
    return ((p.image * rows + p.row) * columns + p.column) * channels + p.channel;
  }
};

struct MaxPool {
  static constexpr uint32_t kThreads = 256;
  static constexpr int kPhases = 1;
  using Shared = Nothing;
  using State = Nothing;

  PooledImages shape;
  MaxPoolAxis y_axis, x_axis;
  const uint8_t* from;
  uint8_t* to;

  Grid grid() const { return UnitCut::grid(shape.units(), kThreads); }

  HORIZON_HD void operator()(int, const Thread& t, State&, Shared&) const {
    const int64_t units = shape.units();
    for (int64_t i = UnitCut::first(t); i < units; i += UnitCut::step(t)) {
      const PooledImages::Place place = shape.place(i);
      const PoolTaps rows = taps_inside(y_axis, place.row);
      const PoolTaps columns = taps_inside(x_axis, place.column);
      uint32_t most[kPoolVector] = {};
      for (int64_t y = 0; y < rows.count; ++y) {
        for (int64_t x = 0; x < columns.count; ++x) {
          uint32_t codes[kPoolVector];
          load<kPoolVector>(from + shape.input(place, rows.first + y * y_axis.dilation,
                                               columns.first + x * x_axis.dilation),
                            place.count, codes);
          for (int j = 0; j < kPoolVector; ++j) most[j] = most[j] < codes[j] ? codes[j] : most[j];
        }
      }
      store<kPoolVector>(to + shape.output(place), place.count, most);
    }
  }
};

/// The code of a sum of centred codes, averaged over `count`.
HORIZON_HD uint32_t average_code(int64_t centred_sum, int64_t count, const GridValues& x,
                                 const GridValues& y) {
  const float multiplier = quant::average_multiplier(x.scale, y.scale, static_cast<double>(count));
  return CodeOutput(y, quant::Activation::kNone)(static_cast<float>(centred_sum) * multiplier);
}

template <typename Axis>
struct AveragePool {
  static constexpr uint32_t kThreads = 256;
  static constexpr int kPhases = 1;
  using Shared = Nothing;
  using State = Nothing;

  DeviceGrid x, y;
  PooledImages shape;
  Axis y_axis, x_axis;
  PoolDivisor divisor;
  const uint8_t* from;
  uint8_t* to;

  Grid grid() const { return UnitCut::grid(shape.units(), kThreads); }

  HORIZON_HD void operator()(int, const Thread& t, State&, Shared&) const {
    const GridValues in = x.read();
    const GridValues out = y.read();
    const int64_t units = shape.units();
    for (int64_t i = UnitCut::first(t); i < units; i += UnitCut::step(t)) {
      const PooledImages::Place place = shape.place(i);
      const PoolRange rows = y_axis(place.row);
      const PoolRange columns = x_axis(place.column);
      int64_t sums[kPoolVector] = {};
      for (int64_t r = rows.begin; r < rows.end; ++r) {
        for (int64_t c = columns.begin; c < columns.end; ++c) {
          uint32_t codes[kPoolVector];
          load<kPoolVector>(from + shape.input(place, r, c), place.count, codes);
          for (int j = 0; j < kPoolVector; ++j) sums[j] += codes[j];
        }
      }
      const int64_t pixels = (rows.end - rows.begin) * (columns.end - columns.begin);
      const int64_t count = divisor(rows, columns);
      uint32_t codes[kPoolVector];
      for (int j = 0; j < kPoolVector; ++j) {
        codes[j] = average_code(sums[j] - pixels * in.zero_point, count, in, out);
      }
      store<kPoolVector>(to + shape.output(place), place.count, codes);
    }
  }
};

}  // namespace horizon::ops::cuda
