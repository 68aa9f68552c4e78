#include <limits>

#include "ops/cpu/kernels/fused_lanes.h"

// Means and variances in two passes over tiles that stay in cache, merged in double: accurate at
// any ratio of mean to deviation, at the memory traffic of one pass.
namespace horizon::cpu::HORIZON_CAPABILITY {
namespace {

constexpr int64_t kMaxTileRows = 256;
constexpr int64_t kTileElements = 16384;

template <typename T>
constexpr T kInfinity = std::numeric_limits<T>::infinity();

HORIZON_HD int64_t tile_rows(int64_t length) {
  const int64_t rows = kTileElements / length;
  return rows < 8 ? 8 : (rows > kMaxTileRows ? kMaxTileRows : rows);
}

/// Sums of one tile, per lane: of x, of x - mean and of its square, and the extremes.
template <typename T>
struct TileSums {
  T mean[kLanes<T>];
  T first[kLanes<T>];
  T second[kLanes<T>];
  T lo[kLanes<T>];
  T hi[kLanes<T>];
};

/// The sums of kGroups neighbouring groups of lanes, one entry of `out` each.
template <typename T, bool kVariance, int kGroups>
HORIZON_HD void sum_tile(const T* x, int64_t stride, int64_t rows, TileSums<T>* out) {
  Lanes<T> sum[kGroups], lo[kGroups], hi[kGroups], row;
  for (int j = 0; j < kGroups; ++j) {
    sum[j].fill(T(0));
    lo[j].fill(kInfinity<T>);
    hi[j].fill(-kInfinity<T>);
  }
  for (int64_t r = 0; r < rows; ++r) {
    for (int j = 0; j < kGroups; ++j) {
      const T* p = x + r * stride + j * kLanes<T>;
      Lanes<T>::prefetch(p + kRowsAhead * stride);
      row.load(p);
      if constexpr (kVariance) sum[j].add(row);
      lo[j].lower(row);
      hi[j].raise(row);
    }
  }
  for (int j = 0; j < kGroups; ++j) {
    lo[j].store(out[j].lo);
    hi[j].store(out[j].hi);
  }
  if constexpr (kVariance) {
    const T inverse = T(1) / static_cast<T>(rows);
    Lanes<T> mean[kGroups], first[kGroups], second[kGroups];
    for (int j = 0; j < kGroups; ++j) {
      mean[j].fill(inverse);
      for (int i = 0; i < Lanes<T>::kCount; ++i) mean[j].v[i] *= sum[j].v[i];
      first[j].fill(T(0));
      second[j].fill(T(0));
    }
    for (int64_t r = 0; r < rows; ++r) {
      for (int j = 0; j < kGroups; ++j) {
        row.load(x + r * stride + j * kLanes<T>);
        row.subtract(mean[j]);
        first[j].add(row);
        second[j].add_product(row, row);
      }
    }
    for (int j = 0; j < kGroups; ++j) {
      mean[j].store(out[j].mean);
      first[j].store(out[j].first);
      second[j].store(out[j].second);
    }
  }
}

/// Merges `rows` new values a lane into the first `lanes` entries that already hold `seen` each.
template <typename T, bool kVariance>
HORIZON_HD void merge_tile(const TileSums<T>& tile, int64_t lanes, double seen, double rows,
                           const FusedMoments<T>& out, int64_t at) {
  for (int64_t i = 0; i < lanes; ++i) {
    out.lo[at + i] = lower_of(out.lo[at + i], tile.lo[i]);
    out.hi[at + i] = higher_of(out.hi[at + i], tile.hi[i]);
  }
  if constexpr (kVariance) {
    const double inverse = 1.0 / rows;
    const double share = rows / (seen + rows);
    const double weight = seen * share;
    for (int64_t i = 0; i < lanes; ++i) {
      const double first = static_cast<double>(tile.first[i]);
      const double mean = static_cast<double>(tile.mean[i]) + first * inverse;
      const double m2 = static_cast<double>(tile.second[i]) - first * first * inverse;
      const double delta = mean - out.mean[at + i];
      out.mean[at + i] += delta * share;
      out.m2[at + i] += m2 + delta * delta * weight;
    }
  }
}

/// One tile of `rows` rows and `length` columns.
template <typename T, bool kVariance>
HORIZON_HD void merge_rows(const T* x, int64_t stride, int64_t rows, int64_t length, double seen,
                           const FusedMoments<T>& out) {
  TileSums<T> tiles[kWideGroups];
  int64_t at = 0;
  for (; at + kWideGroups * kLanes<T> <= length; at += kWideGroups * kLanes<T>) {
    sum_tile<T, kVariance, kWideGroups>(x + at, stride, rows, tiles);
    for (int j = 0; j < kWideGroups; ++j) {
      merge_tile<T, kVariance>(tiles[j], kLanes<T>, seen, static_cast<double>(rows), out,
                               at + j * kLanes<T>);
    }
  }
  for (; at + kLanes<T> <= length; at += kLanes<T>) {
    sum_tile<T, kVariance, 1>(x + at, stride, rows, tiles);
    merge_tile<T, kVariance>(tiles[0], kLanes<T>, seen, static_cast<double>(rows), out, at);
  }
  if (at == length) return;
  T padded[kMaxTileRows * kLanes<T>];
  const int64_t left = length - at;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < kLanes<T>; ++i) {
      padded[r * kLanes<T> + i] = i < left ? x[r * stride + at + i] : T(0);
    }
  }
  sum_tile<T, kVariance, 1>(padded, kLanes<T>, rows, tiles);
  merge_tile<T, kVariance>(tiles[0], left, seen, static_cast<double>(rows), out, at);
}

template <typename T, bool kVariance>
void lane_moments_of(const FusedRows& rows, const T* z, int64_t begin, int64_t end,
                     const FusedMoments<T>& out) {
  for (int64_t i = 0; i < rows.length; ++i) {
    out.lo[i] = kInfinity<T>;
    out.hi[i] = -kInfinity<T>;
    if constexpr (kVariance) {
      out.mean[i] = 0;
      out.m2[i] = 0;
    }
  }
  const int64_t full = end * rows.length > rows.total ? end - 1 : end;
  const int64_t step = tile_rows(rows.length);
  for (int64_t r = begin; r < full; r += step) {
    const int64_t count = full - r < step ? full - r : step;
    merge_rows<T, kVariance>(z + r * rows.length, rows.length, count, rows.length,
                             static_cast<double>(r - begin), out);
  }
  if (full < end) {
    merge_rows<T, kVariance>(z + full * rows.length, rows.length, 1, rows.length_of(full),
                             static_cast<double>(full - begin), out);
  }
}

/// Moments of n consecutive elements, accumulated in the same lanes as above.
template <typename T, bool kVariance>
HORIZON_HD void row_moments_of(const T* x, int64_t n, int64_t row, const FusedMoments<T>& out) {
  double mean = 0, m2 = 0;
  T lowest = kInfinity<T>, highest = -kInfinity<T>;
  for (int64_t begin = 0; begin < n; begin += kTileElements) {
    const int64_t count = n - begin < kTileElements ? n - begin : kTileElements;
    const int64_t whole = count - count % kLanes<T>;
    const T* p = x + begin;
    Lanes<T> sum, lo, hi, group;
    sum.fill(T(0));
    lo.fill(kInfinity<T>);
    hi.fill(-kInfinity<T>);
    for (int64_t i = 0; i < whole; i += kLanes<T>) {
      group.load(p + i);
      if constexpr (kVariance) sum.add(group);
      lo.lower(group);
      hi.raise(group);
    }
    T sums[kLanes<T>], los[kLanes<T>], his[kLanes<T>];
    sum.store(sums);
    lo.store(los);
    hi.store(his);
    for (int64_t i = whole; i < count; ++i) {
      sums[i - whole] += p[i];
      lowest = lower_of(lowest, p[i]);
      highest = higher_of(highest, p[i]);
    }
    double total = 0;
    for (int i = 0; i < kLanes<T>; ++i) {
      total += static_cast<double>(sums[i]);
      lowest = lower_of(lowest, los[i]);
      highest = higher_of(highest, his[i]);
    }
    if constexpr (kVariance) {
      const double n_tile = static_cast<double>(count);
      const T center = static_cast<T>(total / n_tile);
      Lanes<T> centers, first, second;
      centers.fill(center);
      first.fill(T(0));
      second.fill(T(0));
      for (int64_t i = 0; i < whole; i += kLanes<T>) {
        group.load(p + i);
        group.subtract(centers);
        first.add(group);
        second.add_product(group, group);
      }
      T firsts[kLanes<T>], seconds[kLanes<T>];
      first.store(firsts);
      second.store(seconds);
      for (int64_t i = whole; i < count; ++i) {
        const T d = p[i] - center;
        firsts[i - whole] += d;
        seconds[i - whole] += d * d;
      }
      double first_sum = 0, second_sum = 0;
      for (int i = 0; i < kLanes<T>; ++i) {
        first_sum += static_cast<double>(firsts[i]);
        second_sum += static_cast<double>(seconds[i]);
      }
      const double tile_mean = static_cast<double>(center) + first_sum / n_tile;
      const double tile_m2 = second_sum - first_sum * first_sum / n_tile;
      const double seen = static_cast<double>(begin);
      const double share = n_tile / (seen + n_tile);
      const double delta = tile_mean - mean;
      mean += delta * share;
      m2 += tile_m2 + delta * delta * (seen * share);
    }
  }
  out.lo[row] = lowest;
  out.hi[row] = highest;
  if constexpr (kVariance) {
    out.mean[row] = mean;
    out.m2[row] = m2;
  }
}

template <typename T>
void lane_moments(const FusedRows& rows, const T* z, int64_t begin, int64_t end, bool variance,
                  const FusedMoments<T>& out) {
  if (variance) {
    lane_moments_of<T, true>(rows, z, begin, end, out);
  } else {
    lane_moments_of<T, false>(rows, z, begin, end, out);
  }
}

template <typename T>
void row_moments(const FusedRows& rows, const T* z, int64_t begin, int64_t end, bool variance,
                 const FusedMoments<T>& out) {
  for (int64_t r = begin; r < end; ++r) {
    if (variance) {
      row_moments_of<T, true>(z + r * rows.length, rows.length, r, out);
    } else {
      row_moments_of<T, false>(z + r * rows.length, rows.length, r, out);
    }
  }
}

}  // namespace

template <typename T>
void add_statistics(FusedKernelsOf<T>& table) {
  table.lane_moments = lane_moments<T>;
  table.row_moments = row_moments<T>;
}
template void add_statistics<float>(FusedKernelsOf<float>&);
template void add_statistics<double>(FusedKernelsOf<double>&);

}  // namespace horizon::cpu::HORIZON_CAPABILITY
