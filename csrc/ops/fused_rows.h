#pragma once

#include <cstdint>

#include "quant/macros.h"

namespace horizon::ops {

/// How the elements of a dense tensor are cut into rows.
///
/// Channels last (and Linear): a row holds a whole number of pixels, and per-channel vectors are
/// tiled to `length` entries. NCHW: a row is one channel of one image, and the channel of row r is
/// r % channels. Only the last row may be shorter than `length`. The bits of a mask start a new
/// byte with every row.
struct FusedRows {
  int64_t total = 0;
  int64_t length = 1;
  int64_t channels = 1;
  bool per_row = false;

  HORIZON_HD int64_t count() const { return (total + length - 1) / length; }
  HORIZON_HD int64_t mask_stride() const { return (length + 7) / 8; }
  HORIZON_HD int64_t mask_bytes() const {
    return length % 8 == 0 ? (total + 7) / 8 : count() * mask_stride();
  }
  HORIZON_HD int64_t length_of(int64_t row) const {
    const int64_t left = total - row * length;
    return left < length ? left : length;
  }
};

}  // namespace horizon::ops
