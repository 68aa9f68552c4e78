#include "ops/cpu/kernels/codes.h"

#include "ops/cpu/kernels/code_writer.h"

namespace horizon::cpu::HORIZON_CAPABILITY {
namespace {

constexpr int64_t kLanes = FloatVector::kLanes;

bool is_finite(float x) {
  uint32_t bits = 0;
  std::memcpy(&bits, &x, sizeof bits);
  return (bits & 0x7F800000U) != 0x7F800000U;
}

bool conv_constants(double x_scale, const float* weight_scale, const double* factor,
                    const double* offset, double y_scale, int64_t channels, float* multiplier,
                    float* result_offset) {
  for (int64_t c = 0; c < channels; ++c) {
    multiplier[c] = quant::requantize_multiplier(x_scale, weight_scale[c], factor[c], y_scale);
    result_offset[c] = quant::requantize_offset(offset[c], y_scale);
  }
  uint32_t infinite = 0;
  for (int64_t c = 0; c < channels; ++c) {
    infinite |= static_cast<uint32_t>(!is_finite(multiplier[c]) || !is_finite(result_offset[c]));
  }
  return infinite == 0;
}

/// Four vectors of codes to as many rows of kSpan entries as they fill.
template <int64_t kSpan>
HORIZON_INLINE void store_rows(const IntVector (&x)[4], uint8_t* const* row, int64_t count) {
  if constexpr (kSpan == kCodes) {
    if (count == kSpan) return store_bytes(x, row[0]);
  }
  alignas(64) uint8_t bytes[kCodes];
  store_bytes(x, bytes);
  for (int64_t r = 0; r < kCodes / kSpan; ++r) {
    if (count == kSpan) {
      std::memcpy(row[r], bytes + r * kSpan, kSpan);
    } else {
      for (int64_t i = 0; i < count; ++i) row[r][i] = bytes[r * kSpan + i];
    }
  }
}

/// kSpan columns of all rows, of which `count` are written; sums and constants are readable up to
/// the span's end. Rows are taken as many at a time as fill four vectors; what is missing at the
/// end is the last row again.
template <int64_t kSpan, bool kSkip>
void requantize_span(const ConvEpilogue& epilogue, const CodeWriter& writer, const int32_t* acc,
                     int64_t acc_stride, int64_t rows, int64_t column, int64_t count,
                     const int64_t* position, uint8_t* output) {
  constexpr int64_t kRows = kCodes / kSpan;
  constexpr int64_t kVectors = kSpan / kLanes;
  IntVector correction[kVectors];
  FloatVector multiplier[kVectors];
  FloatVector offset[kVectors];
  for (int64_t i = 0; i < kVectors; ++i) {
    const int64_t at = column + i * kLanes;
    correction[i] = IntVector::load(epilogue.correction + at);
    multiplier[i] = FloatVector::load(epilogue.multiplier + at);
    offset[i] = FloatVector::load(epilogue.offset + at);
  }
  const FloatVector skip_ratio(epilogue.skip_ratio);
  const FloatVector skip_zero(static_cast<float>(epilogue.skip_zero_point));
  for (int64_t r = 0; r < rows; r += kRows) {
    IntVector codes[4];
    uint8_t* to[kRows];
#pragma GCC unroll 4
    for (int64_t k = 0; k < kRows; ++k) {
      const int64_t row = r + k < rows ? r + k : rows - 1;
      const int64_t at = position[row] + column;
      const int32_t* sums = acc + row * acc_stride + column;
      to[k] = output + at;
      uint8_t added[kSpan];
      const uint8_t* skip = added;
      if constexpr (kSkip) {
        if (count == kSpan) {
          skip = epilogue.skip + at;
        } else {
          std::memset(added, 0, kSpan);
          std::memcpy(added, epilogue.skip + at, count);
        }
      }
#pragma GCC unroll 4
      for (int64_t i = 0; i < kVectors; ++i) {
        const IntVector sum = IntVector::load(sums + i * kLanes).add(correction[i]);
        FloatVector v = quant::scale_value(FloatVector::from(sum), multiplier[i], offset[i]);
        if constexpr (kSkip) {
          const FloatVector code = FloatVector::from(IntVector::load_codes(skip + i * kLanes));
          v = quant::add_scaled(v, code - skip_zero, skip_ratio);
        }
        codes[k * kVectors + i] = writer.code(v);
      }
    }
    store_rows<kSpan>(codes, to, count);
  }
}

template <bool kSkip>
void requantize(const ConvEpilogue& epilogue, const int32_t* acc, int64_t acc_stride, int64_t rows,
                int64_t columns, const int64_t* position, uint8_t* output) {
  constexpr int64_t kWide = kCodes < 32 ? kCodes : 32;
  const CodeWriter writer(epilogue.stage);
  const auto span = [&]<int64_t kSpan>(int64_t column, int64_t count) {
    requantize_span<kSpan, kSkip>(epilogue, writer, acc, acc_stride, rows, column, count, position,
                                  output);
  };
  int64_t c = 0;
  for (; c + kWide <= columns; c += kWide) span.template operator()<kWide>(c, kWide);
  for (; c + 16 <= columns; c += 16) span.template operator()<16>(c, 16);
  if (c == columns) return;
  if (columns > 16) {
    // Overlaps its neighbour and writes the same codes again.
    span.template operator()<16>(columns - 16, 16);
  } else {
    span.template operator()<16>(c, columns - c);
  }
}

void conv_codes(const ConvEpilogue& epilogue, const int32_t* acc, int64_t acc_stride, int64_t rows,
                int64_t columns, const int64_t* position, uint8_t* output) {
  const auto run = epilogue.skip != nullptr ? requantize<true> : requantize<false>;
  run(epilogue, acc, acc_stride, rows, columns, position, output);
}

void conv_values(const ConvEpilogue& epilogue, const int32_t* acc, int64_t acc_stride, int64_t rows,
                 int64_t columns, const int64_t* position, float* output) {
  const ConvEpilogue e = epilogue;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      const int64_t at = position[r] + c;
      float v = quant::scale_accumulator(acc[r * acc_stride + c] + e.correction[c], e.multiplier[c],
                                         e.offset[c]);
      if (e.skip != nullptr) {
        v = quant::add_skip(v, e.skip[at] - e.skip_zero_point, e.skip_ratio);
      }
      output[at] = quant::activate(v, e.stage.activation, e.stage.six);
    }
  }
}

float skipped(const ConvEpilogue& e, const float* v, int64_t i) {
  const float sum = quant::add_skip(v[i], e.skip[i] - e.skip_zero_point, e.skip_ratio);
  return quant::activate(sum, e.stage.activation, e.stage.six);
}

void skip_codes(const ConvEpilogue& epilogue, const float* v, int64_t count, uint8_t* output) {
  const ConvEpilogue e = epilogue;
  for (int64_t i = 0; i < count; ++i) {
    output[i] = quant::to_code(skipped(e, v, i), e.stage.zero_point);
  }
}

void skip_values(const ConvEpilogue& epilogue, const float* v, int64_t count, float* output) {
  const ConvEpilogue e = epilogue;
  for (int64_t i = 0; i < count; ++i) output[i] = skipped(e, v, i);
}

}  // namespace

const CodesKernels& codes_kernels() {
  static const CodesKernels table{conv_constants, conv_codes, conv_values, skip_codes, skip_values};
  return table;
}

}  // namespace horizon::cpu::HORIZON_CAPABILITY
