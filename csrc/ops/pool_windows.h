#pragma once

#include <cstdint>

#include "quant/macros.h"

// Where the windows of poolings lie, for kernels of every device.
namespace horizon::ops {

/// Rows or columns [begin, end) of the image, and how many entries the window counts with padding.
struct PoolRange {
  int64_t begin, end, padded;
};

/// The windows along one axis of an adaptive pooling: each begins where its share of the input
/// does, and they overlap where the sizes do not divide.
struct AdaptiveAxis {
  int64_t size, count;

  HORIZON_HD PoolRange operator()(int64_t i) const {
    const int64_t begin = i * size / count;
    const int64_t end = ((i + 1) * size + count - 1) / count;
    return {begin, end, end - begin};
  }
};

/// Those of nn.AvgPool2d.
struct PoolingAxis {
  int64_t size, count, kernel, stride, padding;

  HORIZON_HD PoolRange operator()(int64_t i) const {
    const int64_t begin = i * stride - padding;
    const int64_t padded_end = begin + kernel < size + padding ? begin + kernel : size + padding;
    const int64_t from_zero = begin > 0 ? begin : 0;
    const int64_t inside = from_zero < size ? from_zero : size;
    const int64_t end = padded_end < size ? padded_end : size;
    return {inside, end > inside ? end : inside, padded_end - begin};
  }
};

/// Those of nn.MaxPool2d: window i takes the entries at i * stride - padding + t * dilation,
/// t < kernel, that lie inside the image.
struct MaxPoolAxis {
  int64_t size;   ///< of the image
  int64_t count;  ///< of the windows
  int64_t kernel, stride, padding, dilation;
};

/// The taps of a window inside the image: `first` is an entry of it, or `count` is 0.
struct PoolTaps {
  int64_t first, count;
};

HORIZON_HD PoolTaps taps_inside(const MaxPoolAxis& axis, int64_t window) {
  const int64_t begin = window * axis.stride - axis.padding;
  const int64_t skipped = begin < 0 ? (axis.dilation - 1 - begin) / axis.dilation : 0;
  const int64_t first = begin + skipped * axis.dilation;
  if (first >= axis.size) return {0, 0};
  const int64_t fitting = (axis.size - 1 - first) / axis.dilation + 1;
  const int64_t left = axis.kernel - skipped;
  const int64_t count = left < fitting ? left : fitting;
  return {first, count > 0 ? count : 0};
}

/// What an average over a window is divided by.
struct PoolDivisor {
  int64_t fixed;        ///< if not 0: this
  bool counts_padding;  ///< otherwise: whether padding counts as pixels

  HORIZON_HD int64_t operator()(const PoolRange& rows, const PoolRange& columns) const {
    if (fixed != 0) return fixed;
    if (counts_padding) return rows.padded * columns.padded;
    const int64_t inside = (rows.end - rows.begin) * (columns.end - columns.begin);
    return inside > 1 ? inside : 1;
  }
};

}  // namespace horizon::ops
