#pragma once

#include <cmath>
#include <cstdint>

#include "ops/cuda/kernels/fused_accumulators.h"
#include "quant/requantize.h"

namespace horizon::ops::cuda {

/// Number, mean, sum of squared deviations and extremes of some values; NaN passes to both
/// extremes.
template <typename T>
struct Moments {
  double count, mean, m2;
  T lo, hi;

  HORIZON_HD void clear() {
    count = mean = m2 = 0;
    lo = kInfinite<T>;
    hi = -kInfinite<T>;
  }
  HORIZON_HD void add(const Moments& x) {
    lo = lower_of(lo, x.lo);
    hi = higher_of(hi, x.hi);
    if (x.count == 0) return;
    const double delta = x.mean - mean;
    const double share = x.count / (count + x.count);
    mean += delta * share;
    m2 += x.m2 + delta * delta * (count * share);
    count += x.count;
  }
};

/// Moments of z, as sums of deviations from the mean of a thread's first tile: accurate at any
/// ratio of mean to deviation. A tile is summed in the compute type T, tiles in double.
template <typename Read, typename T>
struct MomentsOfTile {
  static constexpr int kGroup = ChannelCut::kGroup;
  static constexpr int kDepth = ChannelCut::kDepth;

  struct Running {
    int64_t count;
    double first, second;  ///< sums of deviations and of their squares
    T pivot, lo, hi;

    HORIZON_HD void clear() {
      count = 0;
      first = second = 0;
      pivot = 0;
      lo = kInfinite<T>;
      hi = -kInfinite<T>;
    }
    HORIZON_HD Moments<T> sum() const {
      Moments<T> result;
      result.clear();
      result.lo = lo;
      result.hi = hi;
      if (count == 0) return result;
      result.count = static_cast<double>(count);
      const double shift = first / result.count;
      result.mean = static_cast<double>(pivot) + shift;
      const double m2 = second - first * shift;
      result.m2 = m2 < 0 ? 0 : m2;
      return result;
    }
  };

  Read read;

  HORIZON_HD void lanes(const ChannelTile& at, int64_t channel, int64_t channels,
                        Running* out) const {
    T x[kDepth][kGroup];
    for (int j = 0; j < kDepth; ++j) read.lanes(at, j, channel, channels, x[j]);
    for (int i = 0; i < kGroup; ++i) {
      T column[kDepth];
      bool valid[kDepth];
      for (int j = 0; j < kDepth; ++j) {
        column[j] = x[j][i];
        valid[j] = i < at.valid[j];
      }
      add<kDepth>(column, valid, out[i]);
    }
  }

  HORIZON_HD void all(const ChannelTile& at, int64_t channel, Running& out) const {
    T x[kDepth * kGroup];
    bool valid[kDepth * kGroup];
    for (int j = 0; j < kDepth; ++j) {
      read.all(at, j, channel, x + j * kGroup);
      for (int i = 0; i < kGroup; ++i) valid[j * kGroup + i] = i < at.valid[j];
    }
    add<kDepth * kGroup>(x, valid, out);
  }

 private:
  template <int kCount>
  static HORIZON_HD void add(const T* x, const bool* valid, Running& out) {
    int number = 0;
    for (int i = 0; i < kCount; ++i) {
      if (!valid[i]) continue;
      ++number;
      out.lo = lower_of(out.lo, x[i]);
      out.hi = higher_of(out.hi, x[i]);
    }
    if (number == 0) return;
    if (out.count == 0) {
      T sum = 0;
      for (int i = 0; i < kCount; ++i) sum += valid[i] ? x[i] : T(0);
      out.pivot = sum / static_cast<T>(number);
    }
    T first = 0, second = 0;
    for (int i = 0; i < kCount; ++i) {
      const T d = valid[i] ? x[i] - out.pivot : T(0);
      first += d;
      second += d * d;
    }
    out.count += number;
    out.first += static_cast<double>(first);
    out.second += static_cast<double>(second);
  }
};

/// What follows from a channel's moments: y = a z + b, the running statistics, the extremes of
/// act(y) without a skip. V is the type of the vectors; every result may be null.
template <typename T, typename V>
struct NormalizeChannel {
  const V* gamma = nullptr;  ///< null: 1
  const V* beta = nullptr;   ///< null: 0
  const V* running_mean = nullptr;
  const V* running_var = nullptr;
  V* moved_mean = nullptr;  ///< running_mean, where batch statistics move it
  V* moved_var = nullptr;
  const int64_t* tracked = nullptr;  ///< batches before this one
  double momentum = 0;
  bool cumulative = false;  ///< momentum is 1 / batches
  bool batch_norm = false, batch_stats = false;
  double eps = 0;
  quant::Activation activation = quant::Activation::kNone;
  T* a = nullptr;
  T* b = nullptr;
  T* moments = nullptr;  ///< [2, channels]: mean, 1 / sqrt(var + eps)
  T* lo = nullptr;       ///< [channels]
  T* hi = nullptr;
  int64_t channels = 0;

  HORIZON_HD void operator()(int64_t c, const Moments<T>& sum) const {
    T slope = T(1), offset = T(-0.0);
    if (batch_norm) {
      double mean = sum.mean;
      double variance = sum.count == 0 ? 0 : sum.m2 / sum.count;
      if (!batch_stats) {
        mean = static_cast<double>(running_mean[c]);
        variance = static_cast<double>(running_var[c]);
      } else if (moved_mean != nullptr && sum.count != 0) {
        move_running(c, sum);
      }
      const double inv_std = 1.0 / std::sqrt(variance + eps);
      const double factor = (gamma == nullptr ? 1.0 : static_cast<double>(gamma[c])) * inv_std;
      const double shift = (beta == nullptr ? 0.0 : static_cast<double>(beta[c])) - mean * factor;
      slope = static_cast<T>(factor);
      offset = static_cast<T>(shift);
      if (a != nullptr) a[c] = slope;
      if (b != nullptr) b[c] = offset;
      if (moments != nullptr) {
        moments[c] = static_cast<T>(mean);
        moments[channels + c] = static_cast<T>(inv_std);
      }
    }
    if (lo == nullptr) return;
    // The map is monotone, with the same fma as the pass over z.
    const T first = quant::activate(std::fma(slope, sum.lo, offset), activation, T(6));
    const T second = quant::activate(std::fma(slope, sum.hi, offset), activation, T(6));
    lo[c] = lower_of(lower_of(kInfinite<T>, first), second);
    hi[c] = higher_of(higher_of(-kInfinite<T>, first), second);
  }

 private:
  HORIZON_HD void move_running(int64_t c, const Moments<T>& sum) const {
    double m = momentum;
    if (cumulative) m = tracked == nullptr ? 0.0 : 1.0 / static_cast<double>(*tracked + 1);
    const double mean = static_cast<double>(running_mean[c]);
    const double variance = static_cast<double>(running_var[c]);
    moved_mean[c] = static_cast<V>(m * sum.mean + (1 - m) * mean);
    moved_var[c] = static_cast<V>(m * (sum.m2 / (sum.count - 1)) + (1 - m) * variance);
  }
};

}  // namespace horizon::ops::cuda
