#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
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
  static constexpr int64_t kElements = 1 << 16;
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

template <typename T>
void merge_moments(ChannelMoments<T>& into, size_t c, double& seen, double count, double mean,
                   double m2) {
  if (count == 0) return;
  const double delta = mean - into.mean[c];
  const double share = count / (seen + count);
  into.mean[c] += delta * share;
  into.m2[c] += m2 + delta * delta * (seen * share);
  seen += count;
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
  std::vector<double> mean(static_cast<size_t>(width)), m2(static_cast<size_t>(width));
  std::vector<T> lo(static_cast<size_t>(width)), hi(static_cast<size_t>(width));
  at::parallel_for(0, chunks.count, 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const int64_t at = rows.per_row ? 0 : i * rows.length;
      const FusedMoments<T> out{mean.data() + at, m2.data() + at, lo.data() + at, hi.data() + at};
      const auto kernel = rows.per_row ? kernels.row_moments : kernels.lane_moments;
      kernel(rows, z, chunks.begin(i), chunks.end(i, rows), variance, out);
    }
  });
  std::vector<double> seen(channels);
  for (int64_t i = 0; i < width; ++i) {
    const auto c =
        static_cast<size_t>(rows.per_row ? i % rows.channels : i % rows.length % rows.channels);
    const auto at = static_cast<size_t>(i);
    // Also for a lane without elements: its extremes are the neutral infinities.
    result.lo[c] = lo[at] < result.lo[c] || lo[at] != lo[at] ? lo[at] : result.lo[c];
    result.hi[c] = hi[at] > result.hi[c] || hi[at] != hi[at] ? hi[at] : result.hi[c];
    if (!variance) continue;
    double count = static_cast<double>(rows.length);
    if (!rows.per_row) {
      const int64_t chunk = i / rows.length;
      const int64_t end = chunks.end(chunk, rows);
      const bool missing =
          end == rows.count() && i % rows.length >= rows.length_of(rows.count() - 1);
      count = static_cast<double>(end - chunks.begin(chunk) - (missing ? 1 : 0));
    }
    merge_moments(result, c, seen[c], count, mean[at], m2[at]);
  }
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
  std::vector<double> sum(static_cast<size_t>(width)), product(static_cast<size_t>(width));
  at::parallel_for(0, chunks.count, 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const int64_t at = rows.per_row ? 0 : i * rows.length;
      const auto kernel = rows.per_row ? kernels.row_sums : kernels.lane_sums;
      kernel(args, chunks.begin(i), chunks.end(i, rows), sum.data() + at, product.data() + at);
    }
  });
  for (int64_t i = 0; i < width; ++i) {
    const auto c =
        static_cast<size_t>(rows.per_row ? i % rows.channels : i % rows.length % rows.channels);
    result.first[c] += sum[static_cast<size_t>(i)];
    result.second[c] += product[static_cast<size_t>(i)];
  }
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
