#pragma once

#include <cmath>
#include <cstdint>

#include "ops/cuda/kernels/fused_elements.h"
#include "ops/cuda/kernels/fused_range.h"
#include "quant/fake_quantize.h"
#include "quant/requantize.h"

namespace horizon::ops::cuda {

/// What comes between z and the quantizer: act(fma(a, z, b) + skip), in the compute type T.
template <typename Z, typename S, typename T>
struct FusedValue {
  FusedRows rows;
  const Z* z = nullptr;
  const T* a = nullptr;     ///< [channels]; null: z as it is
  const T* b = nullptr;     ///< as `a`
  const S* skip = nullptr;  ///< laid out as z; may be null
  quant::Activation activation = quant::Activation::kNone;

  /// Before the activation.
  HORIZON_HD void load_piece(const Piece& piece, T* v) const {
    load<kPiece>(z + piece.offset, piece.count, v);
    if (a != nullptr) {
      T slope[kPiece], offset[kPiece];
      load_channels(rows, piece, a, slope);
      load_channels(rows, piece, b, offset);
      for (int i = 0; i < kPiece; ++i) v[i] = std::fma(slope[i], v[i], offset[i]);
    }
    if (skip != nullptr) {
      T x[kPiece];
      load<kPiece>(skip + piece.offset, piece.count, x);
      for (int i = 0; i < kPiece; ++i) v[i] += x[i];
    }
  }
};

inline constexpr uint32_t kElementThreads = 256;
static_assert(kElementThreads == BlockExtremes<float>::kThreads);

/// Blocks of a pass over `count` pieces; a thread takes several where the grid ends.
inline Grid piece_grid(int64_t count, int64_t most = 0x7fffffff) {
  const int64_t blocks = (count + kElementThreads - 1) / kElementThreads;
  return {static_cast<uint32_t>(blocks < most ? blocks : most), 1, 1};
}

/// Extremes of the value over all elements, one pair for each block.
template <typename Z, typename S, typename T>
struct FusedExtremes {
  static constexpr uint32_t kThreads = kElementThreads;
  static constexpr int kPhases = 3;
  static constexpr int64_t kBlocks = 1024;
  using Shared = BlockExtremes<T>;
  using State = Nothing;

  FusedValue<Z, S, T> value;
  T* lo = nullptr;  ///< [blocks]
  T* hi = nullptr;

  HORIZON_HD void operator()(int phase, const Thread& t, State&, Shared& shared) const {
    if (phase == 0) {
      T low = kInfinite<T>, high = -kInfinite<T>;
      const int64_t count = pieces(value.rows);
      const int64_t step = int64_t{t.grid.x} * kThreads;
      for (int64_t p = int64_t{t.block.x} * kThreads + t.index; p < count; p += step) {
        const Piece piece(value.rows, p);
        T v[kPiece];
        value.load_piece(piece, v);
        for (int i = 0; i < kPiece; ++i) {
          if (i >= piece.count) continue;
          const T y = quant::activate(v[i], value.activation, T(6));
          low = lower_of(low, y);
          high = higher_of(high, y);
        }
      }
      shared.put(t.index, low, high);
    } else if (phase == 1) {
      shared.merge_threads(t.index);
    } else if (t.index == 0) {
      shared.merge_heads();
      lo[t.block.x] = shared.lo[0];
      hi[t.block.x] = shared.hi[0];
    }
  }
};

/// y = fq(value), and one bit per element: the gradient passes act and range.
template <typename Z, typename S, typename Y, typename T>
struct FusedApply {
  static constexpr uint32_t kThreads = kElementThreads;
  static constexpr int kPhases = 1;
  using Shared = Nothing;
  using State = Nothing;

  FusedValue<Z, S, T> value;
  const DeviceGrid<T>* grid = nullptr;  ///< null: not quantized
  Y* y = nullptr;                       ///< may be z; null: the mask only
  uint8_t* mask = nullptr;              ///< may be null

  HORIZON_HD void operator()(int, const Thread& t, State&, Shared&) const {
    const int64_t count = pieces(value.rows);
    const int64_t step = int64_t{t.grid.x} * kThreads;
    for (int64_t p = int64_t{t.block.x} * kThreads + t.index; p < count; p += step) {
      const Piece piece(value.rows, p);
      T v[kPiece];
      value.load_piece(piece, v);
      uint32_t bits = 0;
      for (int i = 0; i < kPiece; ++i) {
        const bool pass = finish(v[i]);
        bits |= static_cast<uint32_t>(pass && i < piece.count) << i;
      }
      if (y != nullptr) store<kPiece>(y + piece.offset, piece.count, v);
      if (mask != nullptr) mask[p] = static_cast<uint8_t>(bits);
    }
  }

 private:
  /// Activation and fake quantization; whether the gradient passes both.
  HORIZON_HD bool finish(T& v) const {
    const quant::Activation act = value.activation;
    bool pass = act == quant::Activation::kNone || v > T(0);
    if (act == quant::Activation::kRelu6) pass = pass && v < T(6);
    v = quant::activate(v, act, T(6));
    if (grid == nullptr) return pass;
    pass = pass && quant::passes_gradient(v, grid->inv_scale, grid->zero_point, grid->lo, grid->hi);
    v = quant::fake_quantize(v, grid->scale, grid->inv_scale, grid->zero_point, grid->lo, grid->hi);
    return pass;
  }
};

}  // namespace horizon::ops::cuda
