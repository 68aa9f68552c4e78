#pragma once

#include <cstdint>
#include <type_traits>

#include "ops/cuda/kernels/element_grids.h"
#include "ops/cuda/kernels/fused_apply.h"
#include "ops/cuda/launch.h"
#include "quant/fake_quantize.h"

// Elementwise bodies between numbers, grids and codes, on dense memory.
namespace horizon::ops::cuda {

/// What they share: `total` elements in pieces of eight, one thread for each piece.
struct PieceWork {
  static constexpr uint32_t kThreads = kElementThreads;
  static constexpr int kPhases = 1;
  using Shared = Nothing;
  using State = Nothing;

  int64_t total = 0;

  HORIZON_HD int64_t count() const { return (total + kPiece - 1) / kPiece; }
  Grid grid() const { return piece_grid(count()); }

  /// Calls function(piece, its first element, number of elements) for the pieces of a thread.
  template <typename Function>
  HORIZON_HD void for_pieces(const Thread& t, const Function& function) const {
    const int64_t step = int64_t{t.grid.x} * kThreads;
    for (int64_t p = int64_t{t.block.x} * kThreads + t.index; p < count(); p += step) {
      const int64_t left = total - p * kPiece;
      function(p, p * kPiece, left < kPiece ? left : kPiece);
    }
  }
};

/// Fake quantization of values of type S, computed in T; `kWide` for fp32 grids beyond
/// quant::kNarrowGrid.
template <typename S, typename T, typename Grids, bool kWide>
struct FakeQuantize : PieceWork {
  Grids grids;
  const S* x = nullptr;
  S* y = nullptr;           ///< may be x
  uint8_t* mask = nullptr;  ///< one bit per element where the gradient passes; may be null

  HORIZON_HD void operator()(int, const Thread& t, State&, Shared&) const {
    using Limit = std::conditional_t<kWide, double, T>;
    const Limit lo = static_cast<Limit>(grids.lo);
    const Limit hi = static_cast<Limit>(grids.hi);
    auto cursor = grids.template start<T>();
    for_pieces(t, [&](int64_t p, int64_t first, int64_t n) {
      T v[kPiece];
      load<kPiece>(x + first, n, v);
      cursor.move_to(first);
      uint32_t bits = 0;
      for (int i = 0; i < kPiece; ++i) {
        if (i >= n) continue;
        if (i != 0) cursor.advance();
        const ElementGrid<T>& g = cursor.grid;
        const T zero_point = static_cast<T>(g.zero_point);
        const bool passes = quant::passes_gradient(v[i], g.inv_scale, zero_point, lo, hi);
        bits |= static_cast<uint32_t>(passes) << i;
        if constexpr (kWide) {
          v[i] = quant::fake_quantize_wide<typename Grids::WideProduct>(
              v[i], g.scale, g.inv_scale, zero_point, static_cast<double>(g.zero_point), lo, hi);
        } else {
          v[i] = quant::fake_quantize(v[i], g.scale, g.inv_scale, zero_point, lo, hi);
        }
      }
      store<kPiece>(y + first, n, v);
      if (mask != nullptr) mask[p] = static_cast<uint8_t>(bits);
    });
  }
};

/// Codes of values; NaN, which has none, becomes the zero point.
template <typename S, typename T, typename Grids, typename Code>
struct EncodeValues : PieceWork {
  Grids grids;
  const S* x = nullptr;
  Code* codes = nullptr;

  HORIZON_HD void operator()(int, const Thread& t, State&, Shared&) const {
    auto cursor = grids.template start<T>();
    for_pieces(t, [&](int64_t, int64_t first, int64_t n) {
      T v[kPiece];
      load<kPiece>(x + first, n, v);
      cursor.move_to(first);
      int32_t q[kPiece];
      for (int i = 0; i < kPiece; ++i) {
        q[i] = 0;
        if (i >= n) continue;
        if (i != 0) cursor.advance();
        const ElementGrid<T>& g = cursor.grid;
        const T zero_point = static_cast<T>(g.zero_point);
        const T code = quant::quantize_to_real(v[i], g.inv_scale, zero_point,
                                               static_cast<T>(grids.lo), static_cast<T>(grids.hi));
        q[i] = static_cast<int32_t>(code == code ? code : zero_point);
      }
      store<kPiece>(codes + first, n, q);
    });
  }
};

/// Values of stored codes.
template <typename S, typename T>
struct DecodeCodes : PieceWork {
  TensorGrid grids;
  const uint8_t* codes = nullptr;
  S* y = nullptr;

  HORIZON_HD void operator()(int, const Thread& t, State&, Shared&) const {
    const ElementGrid<T> g = grids.start<T>().grid;
    for_pieces(t, [&](int64_t, int64_t first, int64_t n) {
      int32_t q[kPiece];
      load<kPiece>(codes + first, n, q);
      T v[kPiece];
      for (int i = 0; i < kPiece; ++i) v[i] = quant::dequantize(q[i] - g.zero_point, g.scale);
      store<kPiece>(y + first, n, v);
    });
  }
};

/// The gradient where the mask has a 1, else 0, on bit patterns: what does not pass is 0 even if it
/// is NaN.
template <typename Bits>
struct MaskGradient : PieceWork {
  const Bits* grad = nullptr;
  const uint8_t* mask = nullptr;
  Bits* out = nullptr;

  HORIZON_HD void operator()(int, const Thread& t, State&, Shared&) const {
    for_pieces(t, [&](int64_t p, int64_t first, int64_t n) {
      Bits v[kPiece];
      load<kPiece>(grad + first, n, v);
      const uint32_t byte = mask[p];
      for (int i = 0; i < kPiece; ++i) v[i] = ((byte >> i) & 1U) != 0 ? v[i] : Bits{0};
      store<kPiece>(out + first, n, v);
    });
  }
};

}  // namespace horizon::ops::cuda
