#pragma once

#include <cstdint>

#include "ops/cuda/kernels/fused_apply.h"
#include "ops/cuda/kernels/fused_channels.h"

namespace horizon::ops::cuda {

/// Sums over a channel of the masked gradient g and of g (z - mean).
struct GradientSums {
  double sum, product;

  HORIZON_HD void clear() { sum = product = 0; }
  HORIZON_HD void add(const GradientSums& x) {
    sum += x.sum;
    product += x.product;
  }
};

/// Tiles are summed in the compute type T, the sums of tiles in double.
template <typename G, typename Z, typename T>
struct GradientOfTile {
  static constexpr int kGroup = ChannelCut::kGroup;
  static constexpr int kDepth = ChannelCut::kDepth;

  struct Running {
    GradientSums sums;
    HORIZON_HD void clear() { sums.clear(); }
    HORIZON_HD GradientSums sum() const { return sums; }
  };

  FusedRows rows;
  const G* grad = nullptr;
  const uint8_t* mask = nullptr;  ///< null: every bit set
  const Z* z = nullptr;           ///< null: no products
  const T* mean = nullptr;        ///< [channels], with z

  HORIZON_HD void lanes(const ChannelTile& at, int64_t channel, int64_t channels,
                        Running* out) const {
    T center[kGroup] = {};
    if (z != nullptr) {
      for (int i = 0; i < kGroup; ++i) {
        center[i] = mean[channel];
        channel = channel + 1 == channels ? 0 : channel + 1;
      }
    }
    T sum[kGroup] = {}, product[kGroup] = {};
    for (int j = 0; j < kDepth; ++j) {
      T g[kGroup], x[kGroup] = {};
      load_group(at, j, g, x);
      for (int i = 0; i < kGroup; ++i) {
        sum[i] += g[i];
        product[i] += product_of(g[i], x[i], center[i], i < at.valid[j]);
      }
    }
    for (int i = 0; i < kGroup; ++i) {
      out[i].sums.add({static_cast<double>(sum[i]), static_cast<double>(product[i])});
    }
  }

  HORIZON_HD void all(const ChannelTile& at, int64_t channel, Running& out) const {
    const T center = z != nullptr ? mean[channel] : T(0);
    T sum = 0, product = 0;
    for (int j = 0; j < kDepth; ++j) {
      T g[kGroup], x[kGroup] = {};
      load_group(at, j, g, x);
      for (int i = 0; i < kGroup; ++i) {
        sum += g[i];
        product += product_of(g[i], x[i], center, i < at.valid[j]);
      }
    }
    out.sums.add({static_cast<double>(sum), static_cast<double>(product)});
  }

 private:
  HORIZON_HD T product_of(T g, T x, T center, bool valid) const {
    return valid && z != nullptr ? g * (x - center) : T(0);
  }

  HORIZON_HD void load_group(const ChannelTile& at, int j, T* g, T* x) const {
    load<kGroup>(grad + at.offset[j], at.valid[j], g);
    if (z != nullptr) load<kGroup>(z + at.offset[j], at.valid[j], x);
    if (mask == nullptr || at.valid[j] == 0) return;
    const uint32_t bits = mask_bits(at.offset[j], at.valid[j]);
    for (int i = 0; i < kGroup; ++i) {
      if (((bits >> i) & 1U) == 0) g[i] = T(0);
    }
  }

  /// The bits of `count` <= kGroup elements from `offset` on.
  HORIZON_HD uint32_t mask_bits(int64_t offset, int64_t count) const {
    int64_t row = 0, position = offset;
    if (rows.per_row || rows.length % 8 != 0) {
      row = divide(offset, rows.length);
      position -= row * rows.length;
    }
    uint32_t bits = 0;
    for (int64_t i = 0; i < count; ++i) {
      const uint8_t byte = mask[row * rows.mask_stride() + position / 8];
      bits |= ((static_cast<uint32_t>(byte) >> (position % 8)) & 1U) << i;
      if (++position == rows.length && rows.length % 8 != 0) {
        position = 0;
        ++row;
      }
    }
    return bits;
  }
};

/// What follows from a channel's sums: gradients of the vectors, and the coefficients of
/// dz = a g + (k (z - mean) + k0). Every result may be null.
template <typename T, typename V>
struct GradientOfChannel {
  const V* gamma = nullptr;    ///< null: 1
  const T* moments = nullptr;  ///< [2, channels]; null without a batch norm
  bool batch_stats = false;
  int64_t channels = 0;
  double count = 0;  ///< elements of a channel
  T* bias = nullptr;
  T* bn_weight = nullptr;
  T* bn_bias = nullptr;
  T* a = nullptr;
  T* k = nullptr;
  T* k0 = nullptr;

  HORIZON_HD void operator()(int64_t c, const GradientSums& sums) const {
    const double inv_std = moments == nullptr ? 1.0 : static_cast<double>(moments[channels + c]);
    double slope = gamma == nullptr ? 1.0 : static_cast<double>(gamma[c]);
    slope *= inv_std;
    if (bn_bias != nullptr) bn_bias[c] = static_cast<T>(sums.sum);
    if (bn_weight != nullptr) bn_weight[c] = static_cast<T>(sums.product * inv_std);
    // Batch statistics subtract the mean, so that a bias has no effect.
    if (bias != nullptr) {
      bias[c] = static_cast<T>(batch_stats          ? 0.0
                               : moments == nullptr ? sums.sum
                                                    : sums.sum * slope);
    }
    if (a != nullptr) a[c] = static_cast<T>(slope);
    if (k == nullptr) return;
    k0[c] = static_cast<T>(count == 0 ? 0.0 : -slope * sums.sum / count);
    k[c] = static_cast<T>(count == 0 ? 0.0 : -slope * inv_std * inv_std * sums.product / count);
  }
};

/// The gradients of z and of the skip from that of the output.
template <typename G, typename Z, typename D, typename T>
struct FusedGradient {
  static constexpr uint32_t kThreads = kElementThreads;
  static constexpr int kPhases = 1;
  using Shared = Nothing;
  using State = Nothing;

  FusedRows rows;
  const G* grad = nullptr;
  const uint8_t* mask = nullptr;  ///< null: every bit set
  const Z* z = nullptr;           ///< null: dz = a g
  const T* a = nullptr;           ///< [channels]; null: 1
  const T* mean = nullptr;        ///< with z, as k and k0
  const T* k = nullptr;
  const T* k0 = nullptr;
  D* grad_z = nullptr;     ///< may be null
  D* grad_skip = nullptr;  ///< g itself; may be null

  HORIZON_HD void operator()(int, const Thread& t, State&, Shared&) const {
    const int64_t count = pieces(rows);
    const int64_t step = int64_t{t.grid.x} * kThreads;
    for (int64_t p = int64_t{t.block.x} * kThreads + t.index; p < count; p += step) {
      const Piece piece(rows, p);
      T g[kPiece];
      load<kPiece>(grad + piece.offset, piece.count, g);
      if (mask != nullptr) {
        const uint32_t bits = mask[p];
        for (int i = 0; i < kPiece; ++i) {
          if (((bits >> i) & 1U) == 0) g[i] = T(0);
        }
      }
      if (grad_skip != nullptr) store<kPiece>(grad_skip + piece.offset, piece.count, g);
      if (grad_z == nullptr) continue;
      if (a != nullptr) through_batch_norm(piece, g);
      store<kPiece>(grad_z + piece.offset, piece.count, g);
    }
  }

 private:
  HORIZON_HD void through_batch_norm(const Piece& piece, T* g) const {
    T slope[kPiece];
    load_channels(rows, piece, a, slope);
    if (z == nullptr) {
      for (int i = 0; i < kPiece; ++i) g[i] = slope[i] * g[i];
      return;
    }
    T x[kPiece], center[kPiece], tilt[kPiece], offset[kPiece];
    load<kPiece>(z + piece.offset, piece.count, x);
    load_channels(rows, piece, mean, center);
    load_channels(rows, piece, k, tilt);
    load_channels(rows, piece, k0, offset);
    for (int i = 0; i < kPiece; ++i) {
      g[i] = slope[i] * g[i] + (tilt[i] * (x[i] - center[i]) + offset[i]);
    }
  }
};

}  // namespace horizon::ops::cuda
