#pragma once

#include <cstdint>

#include "ops/cuda/kernels/fused_elements.h"
#include "ops/cuda/launch.h"
#include "quant/requantize.h"

// What the bodies of the integer single ops share: grids on the device, and the cut of the work.
namespace horizon::ops::cuda {

/// The values of a grid. The zero point is brought into [0, 255], where every checked one lies: no
/// host sees the values, and whatever they are the integer arithmetic stays defined.
struct GridValues {
  double scale;
  int32_t zero_point;
};

/// A scale and a stored zero point on the device.
struct DeviceGrid {
  const float* scale;
  const int32_t* zero_point;

  HORIZON_HD GridValues read() const {
    const int32_t z = *zero_point;
    return {static_cast<double>(*scale), z < 0 ? 0 : z > 255 ? 255 : z};
  }
};

/// The end of every integer op, steps 4 and 5.
struct CodeOutput {
  quant::Activation activation;
  float six, zero_point;

  CodeOutput() = default;
  HORIZON_HD CodeOutput(const GridValues& y, quant::Activation act)
      : activation(act),
        six(quant::six_on_grid(y.scale)),
        zero_point(static_cast<float>(y.zero_point)) {}

  HORIZON_HD uint32_t operator()(float v) const {
    return quant::to_code(quant::activate(v, activation, six), zero_point);
  }
};

/// Codes of one access.
inline constexpr int kCodeVector = 16;

/// Quotients of sizes, most of which fit 32 bits: a division of 64 is ten times as slow there.
HORIZON_HD int64_t quotient(int64_t a, int64_t b) {
  if (((a | b) >> 32) == 0) {
    return static_cast<uint32_t>(a) / static_cast<uint32_t>(b);
  }
  return a / b;
}

/// One thread for each unit of work, and at most kMaxBlocks, whose threads take several.
struct UnitCut {
  static constexpr int64_t kMaxBlocks = 4096;

  static Grid grid(int64_t units, uint32_t threads) {
    const int64_t blocks = (units + threads - 1) / threads;
    return {static_cast<uint32_t>(blocks < kMaxBlocks ? blocks : kMaxBlocks)};
  }
  static HORIZON_HD int64_t first(const Thread& t) {
    return static_cast<int64_t>(t.block.x) * t.threads + t.index;
  }
  static HORIZON_HD int64_t step(const Thread& t) {
    return static_cast<int64_t>(t.grid.x) * t.threads;
  }
};

}  // namespace horizon::ops::cuda
