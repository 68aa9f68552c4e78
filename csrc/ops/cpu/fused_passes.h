#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "ops/cpu/kernels/fused.h"

// Kernels of `fused` over all rows, on all threads. Work is cut by sizes alone and partial results
// are merged in order, so no result depends on the number of threads.
namespace horizon::cpu {

/// Mean and sum of squared deviations of each channel, and its extremes.
template <typename T>
struct ChannelMoments {
  std::vector<double> mean, m2;
  std::vector<T> lo, hi;
};

struct RowChunks {
  static constexpr int64_t kElements = 1 << 15;
  static constexpr int64_t kMost = 64;

  explicit RowChunks(const FusedRows& rows) {
    const int64_t wanted = std::clamp<int64_t>(rows.total / kElements, 1, kMost);
    size = std::max<int64_t>((rows.count() + wanted - 1) / wanted, 1);
    count = (rows.count() + size - 1) / size;
  }
  int64_t begin(int64_t chunk) const { return chunk * size; }
  int64_t end(int64_t chunk, const FusedRows& rows) const {
    return std::min(rows.count(), (chunk + 1) * size);
  }

  int64_t size, count;
};

inline int64_t row_grain(const FusedRows& rows) {
  constexpr int64_t kElements = 1 << 15;
  return std::max<int64_t>(kElements / std::max<int64_t>(rows.length, 1), 1);
}

/// Calls merge(at, count) for every run of `rows.channels` entries that kernels left in an array of
/// `width`: each entry sums `count` elements of its channel.
template <typename Merge>
void for_channel_runs(const FusedRows& rows, const RowChunks& chunks, int64_t width,
                      const Merge& merge) {
  for (int64_t at = 0; at < width; at += rows.channels) {
    int64_t count = rows.length;
    if (!rows.per_row) {
      const int64_t chunk = at / rows.length;
      const int64_t end = chunks.end(chunk, rows);
      // A row holds whole pixels, so that a short one lacks whole runs.
      const bool missing =
          end == rows.count() && at % rows.length >= rows.length_of(rows.count() - 1);
      count = end - chunks.begin(chunk) - (missing ? 1 : 0);
    }
    merge(at, static_cast<double>(count));
  }
}

/// NaN in a channel makes its extremes NaN. `variance` false: extremes only.
template <typename T>
ChannelMoments<T> channel_moments(const T* z, const FusedRows& rows, bool variance) {
  const auto& kernels = fused_kernels().of<T>();
  const auto channels = static_cast<size_t>(rows.channels);
  const T infinity = std::numeric_limits<T>::infinity();
  ChannelMoments<T> result{std::vector<double>(channels), std::vector<double>(channels),
                           std::vector<T>(channels, infinity), std::vector<T>(channels, -infinity)};
  if (rows.total == 0) return result;
  const RowChunks chunks(rows);
  const int64_t width = rows.per_row ? rows.count() : chunks.count * rows.length;
  // Not initialized: kernels write every entry.
  const auto size = static_cast<size_t>(width);
  const auto mean = std::make_unique_for_overwrite<double[]>(size);
  const auto m2 = std::make_unique_for_overwrite<double[]>(size);
  const auto lo = std::make_unique_for_overwrite<T[]>(size);
  const auto hi = std::make_unique_for_overwrite<T[]>(size);
  at::parallel_for(0, chunks.count, 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const int64_t at = rows.per_row ? 0 : i * rows.length;
      const FusedMoments<T> out{mean.get() + at, m2.get() + at, lo.get() + at, hi.get() + at};
      const auto kernel = rows.per_row ? kernels.row_moments : kernels.lane_moments;
      kernel(rows, z, chunks.begin(i), chunks.end(i, rows), variance, out);
    }
  });
  double seen = 0;
  for_channel_runs(rows, chunks, width, [&](int64_t at, double count) {
    // Also for lanes without elements: their extremes are the neutral infinities.
    for (size_t c = 0; c < channels; ++c) {
      const T low = lo[static_cast<size_t>(at) + c], high = hi[static_cast<size_t>(at) + c];
      result.lo[c] = low < result.lo[c] || low != low ? low : result.lo[c];
      result.hi[c] = high > result.hi[c] || high != high ? high : result.hi[c];
    }
    if (!variance || count == 0) return;
    const double share = count / (seen + count);
    const double weight = seen * share;
    for (size_t c = 0; c < channels; ++c) {
      const double delta = mean[static_cast<size_t>(at) + c] - result.mean[c];
      result.mean[c] += delta * share;
      result.m2[c] += m2[static_cast<size_t>(at) + c] + delta * delta * weight;
    }
    seen += count;
  });
  return result;
}

/// Sums of the masked gradient and, with z, of its products with z - mean, per channel.
template <typename T>
std::pair<std::vector<double>, std::vector<double>> channel_sums(const FusedGradient<T>& args) {
  const auto& kernels = fused_kernels().of<T>();
  const FusedRows& rows = args.rows;
  std::pair<std::vector<double>, std::vector<double>> result{
      std::vector<double>(static_cast<size_t>(rows.channels)),
      std::vector<double>(static_cast<size_t>(rows.channels))};
  if (rows.total == 0) return result;
  const RowChunks chunks(rows);
  const int64_t width = rows.per_row ? rows.count() : chunks.count * rows.length;
  const auto size = static_cast<size_t>(width);
  const auto sum = std::make_unique_for_overwrite<double[]>(size);
  const auto product = std::make_unique_for_overwrite<double[]>(size);
  at::parallel_for(0, chunks.count, 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const int64_t at = rows.per_row ? 0 : i * rows.length;
      const auto kernel = rows.per_row ? kernels.row_sums : kernels.lane_sums;
      kernel(args, chunks.begin(i), chunks.end(i, rows), sum.get() + at, product.get() + at);
    }
  });
  const auto channels = static_cast<size_t>(rows.channels);
  for_channel_runs(rows, chunks, width, [&](int64_t at, double) {
    for (size_t c = 0; c < channels; ++c) {
      result.first[c] += sum[static_cast<size_t>(at) + c];
      if (args.z != nullptr) result.second[c] += product[static_cast<size_t>(at) + c];
    }
  });
  return result;
}

template <typename T>
void apply_all(const FusedApply<T>& args) {
  at::parallel_for(0, args.rows.count(), row_grain(args.rows), [&](int64_t begin, int64_t end) {
    fused_kernels().of<T>().apply(args, begin, end);
  });
}

template <typename T>
void gradient_all(const FusedGradient<T>& args) {
  at::parallel_for(0, args.rows.count(), row_grain(args.rows), [&](int64_t begin, int64_t end) {
    fused_kernels().of<T>().gradient(args, begin, end);
  });
}

/// Extremes over all rows; NaN anywhere makes both NaN.
template <typename T>
std::pair<T, T> range_all(const FusedApply<T>& args) {
  const RowChunks chunks(args.rows);
  std::vector<T> lo(static_cast<size_t>(chunks.count)), hi(static_cast<size_t>(chunks.count));
  at::parallel_for(0, chunks.count, 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      fused_kernels().of<T>().range(args, chunks.begin(i), chunks.end(i, args.rows),
                                    &lo[static_cast<size_t>(i)], &hi[static_cast<size_t>(i)]);
    }
  });
  std::pair<T, T> result{lo[0], hi[0]};
  for (size_t i = 1; i < lo.size(); ++i) {
    if (lo[i] < result.first || lo[i] != lo[i]) result.first = lo[i];
    if (hi[i] > result.second || hi[i] != hi[i]) result.second = hi[i];
  }
  return result;
}

}  // namespace horizon::cpu
