#pragma once

#include "ops/cuda/kernels/quantized_codes.h"

// Maps of single codes: a table in shared memory, one entry by each thread, then a stream.
namespace horizon::ops::cuda {

/// act(x * factor + offset) of the number that a code stands for.
struct AffineEntry {
  DeviceGrid x, y;
  double factor, offset;
  quant::Activation activation;

  HORIZON_HD uint32_t operator()(uint32_t code) const {
    const GridValues from = x.read();
    const GridValues to = y.read();
    const float multiplier = quant::product_multiplier(from.scale, factor, to.scale);
    const float added = quant::requantize_offset(offset, to.scale);
    return CodeOutput(to, activation)(
        quant::scale_accumulator(static_cast<int32_t>(code) - from.zero_point, multiplier, added));
  }
};

/// The same with a factor and an offset on the device.
struct DeviceAffineEntry {
  DeviceGrid x, y;
  const double* factor;
  const double* offset;
  quant::Activation activation;

  HORIZON_HD uint32_t operator()(uint32_t code) const {
    return AffineEntry{x, y, *factor, *offset, activation}(code);
  }
};

/// A code on another grid.
struct RequantizedEntry {
  DeviceGrid x, y;

  HORIZON_HD uint32_t operator()(uint32_t code) const {
    const GridValues from = x.read();
    const GridValues to = y.read();
    // On the same grid the ratio is 1, and every code maps to itself.
    const float ratio = quant::scale_ratio(from.scale, to.scale);
    return CodeOutput(to, quant::Activation::kNone)(
        quant::scale_accumulator(static_cast<int32_t>(code) - from.zero_point, ratio, 0.0F));
  }
};

/// An entry of a table that is given.
struct GivenEntry {
  const uint8_t* table;

  HORIZON_HD uint32_t operator()(uint32_t code) const { return table[code]; }
};

/// Rows of `width` codes, mapped into rows of `stride` codes. A single row may have any length.
template <typename Entry>
struct MapCodes {
  static constexpr uint32_t kThreads = 256;  // one for each code
  static constexpr int kPhases = 2;
  struct Shared {
    uint8_t table[kThreads];
  };
  using State = Nothing;

  Entry entry;
  const uint8_t* from;
  uint8_t* to;
  int64_t rows, width, stride;

  HORIZON_HD int64_t pieces() const { return (width + kCodeVector - 1) / kCodeVector; }

  Grid grid() const { return UnitCut::grid(rows * pieces(), kThreads); }

  HORIZON_HD void operator()(int phase, const Thread& t, State&, Shared& shared) const {
    if (phase == 0) {
      shared.table[t.index] = static_cast<uint8_t>(entry(t.index));
      return;
    }
    const int64_t in_row = pieces();
    for (int64_t i = UnitCut::first(t); i < rows * in_row; i += UnitCut::step(t)) {
      const int64_t row = quotient(i, in_row);
      const int64_t column = (i - row * in_row) * kCodeVector;
      const int64_t left = width - column;
      const int64_t count = left < kCodeVector ? left : kCodeVector;
      uint32_t codes[kCodeVector];
      load<kCodeVector>(from + row * width + column, count, codes);
      for (uint32_t& code : codes) code = shared.table[code];
      store<kCodeVector>(to + row * stride + column, count, codes);
    }
  }
};

/// The multiplier and the offset of each channel. Vectors of one entry hold for every channel.
struct AffineConstants {
  static constexpr uint32_t kThreads = 128;
  static constexpr int kPhases = 1;
  using Shared = Nothing;
  using State = Nothing;

  DeviceGrid x, y;
  const double* factor;
  const double* offset;
  bool one_factor, one_offset;
  int64_t channels;
  float* multipliers;
  float* offsets;

  Grid grid() const { return UnitCut::grid(channels, kThreads); }

  HORIZON_HD void operator()(int, const Thread& t, State&, Shared&) const {
    const GridValues from = x.read();
    const GridValues to = y.read();
    for (int64_t c = UnitCut::first(t); c < channels; c += UnitCut::step(t)) {
      multipliers[c] = quant::product_multiplier(from.scale, factor[one_factor ? 0 : c], to.scale);
      offsets[c] = quant::requantize_offset(offset[one_offset ? 0 : c], to.scale);
    }
  }
};

/// An affine map with constants for each channel; a channel's codes lie in runs of `inner`.
struct AffineChannels {
  static constexpr uint32_t kThreads = 256;
  static constexpr int kPhases = 1;
  using Shared = Nothing;
  using State = Nothing;

  DeviceGrid x, y;
  quant::Activation activation;
  const float* multipliers;
  const float* offsets;
  int64_t channels, inner;
  const uint8_t* from;
  uint8_t* to;
  int64_t count;

  HORIZON_HD int64_t pieces() const { return (count + kCodeVector - 1) / kCodeVector; }

  Grid grid() const { return UnitCut::grid(pieces(), kThreads); }

  HORIZON_HD void operator()(int, const Thread& t, State&, Shared&) const {
    const int32_t zero_point = x.read().zero_point;
    const CodeOutput output(y.read(), activation);
    for (int64_t i = UnitCut::first(t); i < pieces(); i += UnitCut::step(t)) {
      const int64_t begin = i * kCodeVector;
      const int64_t left = count - begin;
      const int64_t size = left < kCodeVector ? left : kCodeVector;
      uint32_t codes[kCodeVector];
      load<kCodeVector>(from + begin, size, codes);
      const int64_t run = quotient(begin, inner);
      int64_t place = begin - run * inner;
      int64_t channel = run - quotient(run, channels) * channels;
      for (uint32_t& code : codes) {
        code = output(quant::scale_accumulator(static_cast<int32_t>(code) - zero_point,
                                               multipliers[channel], offsets[channel]));
        if (++place < inner) continue;
        place = 0;
        channel = channel + 1 == channels ? 0 : channel + 1;
      }
      store<kCodeVector>(to + begin, size, codes);
    }
  }
};

}  // namespace horizon::ops::cuda
