#include "ops/cpu/kernels/transpose.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace horizon::cpu::HORIZON_CAPABILITY {
namespace {

void transpose_bytes(const uint8_t* codes, int64_t stride, int64_t rows, int64_t columns,
                     uint8_t* output, int64_t output_stride) {
  for (int64_t c = 0; c < columns; ++c) {
    for (int64_t r = 0; r < rows; ++r) output[c * output_stride + r] = codes[r * stride + c];
  }
}

#if defined(__SSE2__)

constexpr int64_t kSide = 16;

struct Square {
  __m128i row[kSide];

  /// Sixteen columns of `rows` rows: those beyond are the last one again.
  Square(const uint8_t* codes, int64_t stride, int64_t rows) {
    for (int64_t r = 0; r < kSide; ++r) {
      const uint8_t* from = codes + (r < rows ? r : rows - 1) * stride;
      row[r] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    }
  }

  /// Four times, rows i and i + 8 interleave to rows 2 i and 2 i + 1: bit by bit, what was a number
  /// of a row becomes one of a column.
  void transpose() {
#pragma GCC unroll 4
    for (int step = 0; step < 4; ++step) {
      __m128i next[kSide];
#pragma GCC unroll 8
      for (int64_t i = 0; i < kSide / 2; ++i) {
        next[2 * i] = _mm_unpacklo_epi8(row[i], row[i + kSide / 2]);
        next[2 * i + 1] = _mm_unpackhi_epi8(row[i], row[i + kSide / 2]);
      }
#pragma GCC unroll 16
      for (int64_t i = 0; i < kSide; ++i) row[i] = next[i];
    }
  }

  void store(uint8_t* output, int64_t output_stride) const {
#pragma GCC unroll 16
    for (int64_t i = 0; i < kSide; ++i) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(output + i * output_stride), row[i]);
    }
  }
};

/// The first codes of a block that begins `at` codes further on and ends with the last one.
int64_t last_block(int64_t at, int64_t count) { return at + kSide <= count ? at : count - kSide; }

/// Fewer than sixteen rows that fill their columns: each store reaches into the columns that
/// follow, which are written later, so that the last ones are left to single bytes.
void transpose_few(const uint8_t* codes, int64_t stride, int64_t rows, int64_t columns,
                   uint8_t* output) {
  int64_t c = 0;
  for (; (c + kSide - 1) * rows + kSide <= columns * rows && c + kSide <= columns; c += kSide) {
    Square square(codes + c, stride, rows);
    square.transpose();
    square.store(output + c * rows, rows);
  }
  transpose_bytes(codes + c, stride, rows, columns - c, output + c * rows, rows);
}

void transpose(const uint8_t* codes, int64_t stride, int64_t rows, int64_t columns, uint8_t* output,
               int64_t output_stride) {
  if (rows < kSide && rows == output_stride) {
    return transpose_few(codes, stride, rows, columns, output);
  }
  if (rows < kSide || columns < kSide) {
    return transpose_bytes(codes, stride, rows, columns, output, output_stride);
  }
  // The last blocks overlap their neighbours and write the same codes again.
  for (int64_t column = 0; column < columns; column += kSide) {
    const int64_t c = last_block(column, columns);
    for (int64_t row = 0; row < rows; row += kSide) {
      const int64_t r = last_block(row, rows);
      Square square(codes + r * stride + c, stride, kSide);
      square.transpose();
      square.store(output + c * output_stride + r, output_stride);
    }
  }
}

#endif

}  // namespace

const TransposeKernels& transpose_kernels() {
#if defined(__SSE2__)
  static const TransposeKernels table{transpose};
#else
  static const TransposeKernels table{transpose_bytes};
#endif
  return table;
}

}  // namespace horizon::cpu::HORIZON_CAPABILITY
