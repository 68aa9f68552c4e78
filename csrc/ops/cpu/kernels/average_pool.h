#pragma once

#include <cstdint>

#include "ops/cpu/dispatch.h"
#include "ops/cpu/kernels/codes.h"

namespace horizon::cpu {

/// Neighbouring windows of one size at one distance, along the columns.
struct WindowRun {
  int64_t windows;
  int64_t begin;   ///< first column of the first window
  int64_t size;    ///< columns of each
  int64_t stride;  ///< from one window to the next
};

/// The windows of one row of an average pooling's result.
struct AverageRow {
  const uint8_t* from;  ///< [height][size][channels] codes: the rows that the windows cover
  int64_t height, size, channels;
  const WindowRun* runs;  ///< [run_count]; at most kMaxWindow pixels a window
  int64_t run_count;
  const float* multiplier;  ///< [windows]
  int64_t windows;          ///< of all runs
  int32_t zero_point;
  OutputStage stage;
};

/// Room that a row needs: `columns` for size * channels + 1, the others for windows * channels
/// entries.
struct AverageScratch {
  uint16_t* columns;
  int32_t* sums;
  float* multipliers;
};

struct AveragePoolKernels {
  /// [windows][channels] codes: float(sum(q - z)) * multiplier, then the stage.
  void (*row)(const AverageRow& row, const AverageScratch& scratch, uint8_t* output);

  /// The sum of at most kMaxWindow codes.
  int32_t (*sum)(const uint8_t* q, int64_t count);
};

HORIZON_DECLARE_KERNELS(AveragePoolKernels, average_pool_kernels);

}  // namespace horizon::cpu
