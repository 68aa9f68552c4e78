#include "ops/cpu/kernels/codes.h"

#include "ops/cpu/kernels/code_block.h"

namespace horizon::cpu::HORIZON_CAPABILITY {
namespace {

using quant::Activation;

/// Activation and code, or activation alone, of `count` values: kCodeBlock of them or fewer.
template <Activation kAct, int64_t kCount>
HORIZON_INLINE void finish(const float* v, int64_t count, const OutputStage& stage, uint8_t* out) {
  if constexpr (kCount == kCodeBlock) {
    uint32_t bits[kCodeBlock];
    for (int64_t i = 0; i < kCodeBlock; ++i) {
      bits[i] = quant::to_code_bits(quant::activate(v[i], kAct, stage.six), stage.zero_point);
    }
    narrow_codes(bits, out);
  } else {
    for (int64_t i = 0; i < count; ++i) {
      out[i] = quant::to_code(quant::activate(v[i], kAct, stage.six), stage.zero_point);
    }
  }
}

template <Activation kAct, int64_t kCount>
HORIZON_INLINE void finish(const float* v, int64_t count, const OutputStage& stage, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = quant::activate(v[i], kAct, stage.six);
}

template <int64_t kCount>
HORIZON_INLINE void widen(const uint8_t* codes, int64_t count, int32_t* values) {
  if constexpr (kCount == kCodeBlock) {
    widen_codes(codes, values);
  } else {
    for (int64_t i = 0; i < count; ++i) values[i] = codes[i];
  }
}

/// Calls `body.template block<kCount>(first, count)` over [0, size): blocks of constant size, which
/// vectorize without a remainder, then what is left.
template <typename Body>
HORIZON_INLINE void over_blocks(int64_t size, const Body& body) {
  int64_t first = 0;
  for (; first + kCodeBlock <= size; first += kCodeBlock) {
    body.template block<kCodeBlock>(first, kCodeBlock);
  }
  if (first < size) body.template block<0>(first, size - first);
}

/// Calls `body` with the activation as a constant, so that its loops have no branches.
template <typename Body>
HORIZON_INLINE void with_activation(Activation act, const Body& body) {
  switch (act) {
    case Activation::kRelu:
      return body.template operator()<Activation::kRelu>();
    case Activation::kRelu6:
      return body.template operator()<Activation::kRelu6>();
    default:
      return body.template operator()<Activation::kNone>();
  }
}

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

template <typename T, Activation kAct, bool kSkip>
struct ConvRow {
  const ConvEpilogue& epilogue;
  const int32_t* sum;
  const uint8_t* skip;
  T* out;

  template <int64_t kCount>
  HORIZON_INLINE void block(int64_t first, int64_t count) const {
    const int32_t* acc = sum + first;
    const int32_t* correction = epilogue.correction + first;
    const float* multiplier = epilogue.multiplier + first;
    const float* offset = epilogue.offset + first;
    float v[kCodeBlock];
    for (int64_t i = 0; i < count; ++i) {
      v[i] = quant::scale_accumulator(acc[i] - correction[i], multiplier[i], offset[i]);
    }
    if constexpr (kSkip) {
      int32_t added[kCodeBlock];
      widen<kCount>(skip + first, count, added);
      for (int64_t i = 0; i < count; ++i) {
        v[i] = quant::add_skip(v[i], added[i] - epilogue.skip_zero_point, epilogue.skip_ratio);
      }
    }
    finish<kAct, kCount>(v, count, epilogue.stage, out + first);
  }
};

template <typename T, Activation kAct, bool kSkip>
void conv_rows(const ConvEpilogue& epilogue, const int32_t* acc, int64_t acc_stride, int64_t rows,
               int64_t columns, const int64_t* position, T* output) {
  const ConvEpilogue local = epilogue;
  for (int64_t r = 0; r < rows; ++r) {
    const ConvRow<T, kAct, kSkip> row{local, acc + r * acc_stride,
                                      kSkip ? local.skip + position[r] : nullptr,
                                      output + position[r]};
    over_blocks(columns < kCodeBlock ? columns : columns / kCodeBlock * kCodeBlock, row);
    // The last block overlaps its neighbour and writes the same results again.
    if (columns > kCodeBlock && columns % kCodeBlock != 0) {
      row.template block<kCodeBlock>(columns - kCodeBlock, kCodeBlock);
    }
  }
}

template <typename T>
void conv_epilogue(const ConvEpilogue& epilogue, const int32_t* acc, int64_t acc_stride,
                   int64_t rows, int64_t columns, const int64_t* position, T* output) {
  with_activation(epilogue.stage.activation, [&]<Activation kAct>() {
    if (epilogue.skip != nullptr) {
      conv_rows<T, kAct, true>(epilogue, acc, acc_stride, rows, columns, position, output);
    } else {
      conv_rows<T, kAct, false>(epilogue, acc, acc_stride, rows, columns, position, output);
    }
  });
}

template <typename T, Activation kAct>
struct SkipBlocks {
  const ConvEpilogue& epilogue;
  const float* value;
  T* out;

  template <int64_t kCount>
  HORIZON_INLINE void block(int64_t first, int64_t count) const {
    int32_t added[kCodeBlock];
    float v[kCodeBlock];
    widen<kCount>(epilogue.skip + first, count, added);
    for (int64_t i = 0; i < count; ++i) {
      v[i] = quant::add_skip(value[first + i], added[i] - epilogue.skip_zero_point,
                             epilogue.skip_ratio);
    }
    finish<kAct, kCount>(v, count, epilogue.stage, out + first);
  }
};

template <typename T>
void skip_epilogue(const ConvEpilogue& epilogue, const float* v, int64_t count, T* output) {
  const ConvEpilogue local = epilogue;
  with_activation(local.stage.activation, [&]<Activation kAct>() {
    over_blocks(count, SkipBlocks<T, kAct>{local, v, output});
  });
}

template <Activation kAct, bool kProduct>
struct BinaryBlocks {
  const BinaryCodes& op;
  const uint8_t* a;
  const uint8_t* b;
  uint8_t* out;

  template <int64_t kCount>
  HORIZON_INLINE void block(int64_t first, int64_t count) const {
    int32_t x[kCodeBlock];
    int32_t y[kCodeBlock];
    float v[kCodeBlock];
    widen<kCount>(a + first, count, x);
    widen<kCount>(b + first, count, y);
    for (int64_t i = 0; i < count; ++i) {
      const int32_t centred_a = x[i] - op.a_zero_point;
      const int32_t centred_b = y[i] - op.b_zero_point;
      v[i] = kProduct ? static_cast<float>(centred_a * centred_b) * op.a_ratio
                      : quant::add_codes(static_cast<float>(centred_a), op.a_ratio,
                                         static_cast<float>(centred_b), op.b_ratio);
    }
    finish<kAct, kCount>(v, count, op.stage, out + first);
  }
};

template <bool kProduct>
void binary(const BinaryCodes& op, const uint8_t* a, const uint8_t* b, int64_t count,
            uint8_t* output) {
  const BinaryCodes local = op;
  with_activation(local.stage.activation, [&]<Activation kAct>() {
    over_blocks(count, BinaryBlocks<kAct, kProduct>{local, a, b, output});
  });
}

/// One map for all entries, or with kColumns a map for each.
template <Activation kAct, bool kColumns>
struct AffineBlocks {
  const uint8_t* q;
  int32_t zero_point;
  const float* multiplier;
  const float* offset;
  const OutputStage& stage;
  uint8_t* out;

  template <int64_t kCount>
  HORIZON_INLINE void block(int64_t first, int64_t count) const {
    int32_t x[kCodeBlock];
    float v[kCodeBlock];
    widen<kCount>(q + first, count, x);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t map = kColumns ? first + i : 0;
      v[i] = quant::scale_accumulator(x[i] - zero_point, multiplier[map], offset[map]);
    }
    finish<kAct, kCount>(v, count, stage, out + first);
  }
};

void affine(const uint8_t* q, int64_t count, int32_t zero_point, float multiplier, float offset,
            const OutputStage& stage, uint8_t* output) {
  const OutputStage local = stage;
  with_activation(local.activation, [&]<Activation kAct>() {
    over_blocks(count,
                AffineBlocks<kAct, false>{q, zero_point, &multiplier, &offset, local, output});
  });
}

void affine_columns(const uint8_t* q, int64_t rows, int64_t columns, int32_t zero_point,
                    const float* multiplier, const float* offset, const OutputStage& stage,
                    uint8_t* output) {
  const OutputStage local = stage;
  with_activation(local.activation, [&]<Activation kAct>() {
    for (int64_t r = 0; r < rows; ++r) {
      over_blocks(columns, AffineBlocks<kAct, true>{q + r * columns, zero_point, multiplier, offset,
                                                    local, output + r * columns});
    }
  });
}

void average(const uint8_t* q, int64_t row_stride, int64_t height, int64_t width, int64_t channels,
             int32_t zero_point, float multiplier, const OutputStage& stage, uint8_t* output) {
  constexpr int64_t kBlock = 64;
  const auto centre = static_cast<int32_t>(height * width * zero_point);
  int32_t sum[kBlock];
  for (int64_t first = 0; first < channels; first += kBlock) {
    const int64_t count = channels - first < kBlock ? channels - first : kBlock;
    for (int32_t& s : sum) s = 0;
    for (int64_t y = 0; y < height; ++y) {
      const uint8_t* row = q + y * row_stride + first;
      for (int64_t x = 0; x < width; ++x, row += channels) {
        if (count == kBlock) {
          for (int64_t c = 0; c < kBlock; ++c) sum[c] += row[c];
        } else {
          for (int64_t c = 0; c < count; ++c) sum[c] += row[c];
        }
      }
    }
    for (int64_t c = 0; c < count; ++c) {
      const float v = static_cast<float>(sum[c] - centre) * multiplier;
      const float y = quant::activate(v, stage.activation, stage.six);
      output[first + c] = quant::to_code(y, stage.zero_point);
    }
  }
}

int32_t sum(const uint8_t* q, int64_t count) {
  int32_t total = 0;
  for (int64_t i = 0; i < count; ++i) total += q[i];
  return total;
}

}  // namespace

const CodesKernels& codes_kernels() {
  static const CodesKernels table{conv_constants,
                                  conv_epilogue<uint8_t>,
                                  conv_epilogue<float>,
                                  skip_epilogue<uint8_t>,
                                  skip_epilogue<float>,
                                  binary<false>,
                                  binary<true>,
                                  affine,
                                  affine_columns,
                                  average,
                                  sum};
  return table;
}

}  // namespace horizon::cpu::HORIZON_CAPABILITY
