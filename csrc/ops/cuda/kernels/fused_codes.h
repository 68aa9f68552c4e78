#pragma once

#include <cstdint>

#include "ops/cuda/kernels/fused_accumulators.h"
#include "ops/cuda/kernels/fused_apply.h"
#include "quant/grid.h"

namespace horizon::ops::cuda {

/// Stored codes of values that lie on a grid. NaN, which has no code, becomes the zero point and
/// is reported: every thread that meets one writes the same word.
template <typename S, typename T>
struct EncodeInput {
  static constexpr uint32_t kThreads = kElementThreads;
  static constexpr int kPhases = 1;
  using Shared = Nothing;
  using State = Nothing;

  int64_t total = 0;
  const S* x = nullptr;
  const float* scale = nullptr;         ///< one number
  const int32_t* zero_point = nullptr;  ///< one number, as stored
  uint8_t* codes = nullptr;
  int32_t* has_nan = nullptr;  ///< set to 1

  HORIZON_HD void operator()(int, const Thread& t, State&, Shared&) const {
    const T inverse = static_cast<T>(1.0F / *scale);
    const T zero = static_cast<T>(*zero_point);
    const int64_t count = (total + kPiece - 1) / kPiece;
    const int64_t step = int64_t{t.grid.x} * kThreads;
    for (int64_t p = int64_t{t.block.x} * kThreads + t.index; p < count; p += step) {
      const int64_t left = total - p * kPiece;
      const int64_t n = left < kPiece ? left : kPiece;
      T v[kPiece];
      load<kPiece>(x + p * kPiece, n, v);
      bool nan = false;
      uint8_t q[kPiece];
      for (int i = 0; i < kPiece; ++i) {
        const T code = quant::quantize_to_real(v[i], inverse, zero, T(quant::kStoredMin),
                                               T(quant::kStoredMax));
        const bool bad = code != code;
        nan = nan || bad;
        const T kept = bad ? zero : code;
        q[i] = static_cast<uint8_t>(kept > T(0) ? kept : T(0));
      }
      store<kPiece>(codes + p * kPiece, n, q);
      if (nan) *has_nan = 1;
    }
  }
};

/// Scales what `AccumulatorScale` says, in place.
template <typename V>
struct ScaleAccumulators {
  static constexpr uint32_t kThreads = kElementThreads;
  static constexpr int kPhases = 1;
  using Shared = Nothing;
  using State = Nothing;

  FusedRows rows;
  float* z = nullptr;
  AccumulatorScale<V> scale;

  HORIZON_HD void operator()(int, const Thread& t, State&, Shared&) const {
    const double input_scale = scale.input();
    const int64_t count = pieces(rows);
    const int64_t step = int64_t{t.grid.x} * kThreads;
    for (int64_t p = int64_t{t.block.x} * kThreads + t.index; p < count; p += step) {
      const Piece piece(rows, p);
      float v[kPiece];
      load<kPiece>(z + piece.offset, piece.count, v);
      int64_t c = piece.channel;
      for (int i = 0; i < kPiece; ++i) {
        v[i] = scale.value(v[i], input_scale, c);
        if (!rows.per_row) c = c + 1 == rows.channels ? 0 : c + 1;
      }
      store<kPiece>(z + piece.offset, piece.count, v);
    }
  }
};

}  // namespace horizon::ops::cuda
