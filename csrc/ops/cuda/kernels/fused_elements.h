#pragma once

#include <cstdint>
#include <limits>

#include "ops/fused_rows.h"
#include "quant/macros.h"

// What the bodies of the training op share: loads of several elements, and where they stand.
namespace horizon::ops::cuda {

template <typename T>
inline constexpr T kInfinite = std::numeric_limits<T>::infinity();

/// One load or store of the device.
template <typename S, int kCount>
struct alignas(sizeof(S) * kCount) Vector {
  S v[kCount];
};

/// Elements of one access: at most 16 bytes.
template <typename S, int kCount>
inline constexpr int kVectorWidth =
    static_cast<int>(sizeof(S)) * kCount <= 16 ? kCount : 16 / static_cast<int>(sizeof(S));

template <typename Vector>
HORIZON_HD bool is_aligned(const void* p) {
  return reinterpret_cast<uintptr_t>(p) % sizeof(Vector) == 0;
}

/// Reads n <= kCount elements in the compute type; the others are 0.
template <int kCount, typename S, typename T>
HORIZON_HD void load(const S* p, int64_t n, T* out) {
  constexpr int kWidth = kVectorWidth<S, kCount>;
  using Access = Vector<S, kWidth>;
  if (n == kCount && is_aligned<Access>(p)) {
    for (int i = 0; i < kCount; i += kWidth) {
      const Access x = *reinterpret_cast<const Access*>(p + i);
      for (int j = 0; j < kWidth; ++j) out[i + j] = static_cast<T>(x.v[j]);
    }
    return;
  }
  for (int i = 0; i < kCount; ++i) out[i] = i < n ? static_cast<T>(p[i]) : T(0);
}

/// Writes the first n <= kCount elements, rounded to S.
template <int kCount, typename S, typename T>
HORIZON_HD void store(S* p, int64_t n, const T* in) {
  constexpr int kWidth = kVectorWidth<S, kCount>;
  using Access = Vector<S, kWidth>;
  if (n == kCount && is_aligned<Access>(p)) {
    for (int i = 0; i < kCount; i += kWidth) {
      Access x;
      for (int j = 0; j < kWidth; ++j) x.v[j] = static_cast<S>(in[i + j]);
      *reinterpret_cast<Access*>(p + i) = x;
    }
    return;
  }
  for (int i = 0; i < kCount; ++i) {
    if (i < n) p[i] = static_cast<S>(in[i]);
  }
}

/// a / b of numbers that are not negative; a 64-bit division costs several times a 32-bit one.
HORIZON_HD int64_t divide(int64_t a, int64_t b) {
  if ((a | b) >> 32 == 0) return static_cast<uint32_t>(a) / static_cast<uint32_t>(b);
  return a / b;
}

HORIZON_HD int64_t remainder(int64_t a, int64_t b) { return a - divide(a, b) * b; }

/// Elements of one thread's piece of a row: those of one byte of a mask.
inline constexpr int kPiece = 8;

/// Pieces of all rows.
HORIZON_HD int64_t pieces(const FusedRows& rows) { return rows.total == 0 ? 0 : rows.mask_bytes(); }

/// Where a piece, numbered as the bytes of a mask are, stands.
struct Piece {
  int64_t offset;   ///< of its first element
  int64_t count;    ///< of its elements, 0 to 8
  int64_t channel;  ///< of its first element

  HORIZON_HD Piece(const FusedRows& rows, int64_t index) {
    if (!rows.per_row && rows.length % kPiece == 0) {
      offset = index * kPiece;
      count = rows.total - offset;
      channel = remainder(offset, rows.channels);
    } else {
      const int64_t row = divide(index, rows.mask_stride());
      const int64_t at = (index - row * rows.mask_stride()) * kPiece;
      offset = row * rows.length + at;
      count = rows.length_of(row) - at;
      channel = remainder(rows.per_row ? row : at, rows.channels);
    }
    count = count < 0 ? 0 : (count < kPiece ? count : kPiece);
  }
};

/// Per-channel values of a piece's elements.
template <typename T>
HORIZON_HD void load_channels(const FusedRows& rows, const Piece& piece, const T* values, T* out) {
  if (rows.per_row) {
    const T value = values[piece.channel];
    for (int i = 0; i < kPiece; ++i) out[i] = value;
  } else if (piece.channel + kPiece <= rows.channels) {
    load<kPiece>(values + piece.channel, kPiece, out);
  } else {
    int64_t c = piece.channel;
    for (int i = 0; i < kPiece; ++i) {
      out[i] = values[c];
      c = c + 1 == rows.channels ? 0 : c + 1;
    }
  }
}

/// NaN wins.
template <typename T>
HORIZON_HD T lower_of(T a, T x) {
  return (x < a || x != x) ? x : a;
}
template <typename T>
HORIZON_HD T higher_of(T a, T x) {
  return (x > a || x != x) ? x : a;
}

}  // namespace horizon::ops::cuda
