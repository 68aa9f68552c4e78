#include "ops/cpu/kernels/codes.h"

#include "ops/cpu/kernels/int_vector.h"

namespace horizon::cpu::HORIZON_CAPABILITY {
namespace {

using quant::Activation;

template <typename T>
struct Finish;

template <>
struct Finish<uint8_t> {
  template <Activation kAct>
  static HORIZON_INLINE uint8_t apply(float v, const OutputStage& stage) {
    return quant::to_code(quant::activate(v, kAct, stage.six), stage.zero_point);
  }
};

template <>
struct Finish<float> {
  template <Activation kAct>
  static HORIZON_INLINE float apply(float v, const OutputStage& stage) {
    return quant::activate(v, kAct, stage.six);
  }
};

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

template <typename T, Activation kAct, bool kSkip>
struct ConvRow {
  const ConvEpilogue& epilogue;
  const int32_t* __restrict sum;
  const uint8_t* __restrict skip;
  T* __restrict out;

  HORIZON_INLINE void columns(int64_t first, int64_t count) const {
    const int32_t* __restrict acc = sum + first;
    const int32_t* __restrict correction = epilogue.correction + first;
    const float* __restrict multiplier = epilogue.multiplier + first;
    const float* __restrict offset = epilogue.offset + first;
    const uint8_t* __restrict added = kSkip ? skip + first : nullptr;
    T* __restrict to = out + first;
    const OutputStage stage = epilogue.stage;
    for (int64_t c = 0; c < count; ++c) {
      float v = quant::scale_accumulator(acc[c] - correction[c], multiplier[c], offset[c]);
      if (kSkip) {
        v = quant::add_skip(v, int32_t{added[c]} - epilogue.skip_zero_point, epilogue.skip_ratio);
      }
      to[c] = Finish<T>::template apply<kAct>(v, stage);
    }
  }
};

/// In blocks of constant size, which vectorize without a remainder; the last one overlaps its
/// neighbour and writes the same results again.
template <typename T, Activation kAct, bool kSkip>
void conv_rows(const ConvEpilogue& epilogue, const int32_t* acc, int64_t acc_stride, int64_t rows,
               int64_t columns, const int64_t* position, T* output) {
  const ConvEpilogue local = epilogue;
  for (int64_t r = 0; r < rows; ++r) {
    const ConvRow<T, kAct, kSkip> row{local, acc + r * acc_stride,
                                      kSkip ? local.skip + position[r] : nullptr,
                                      output + position[r]};
    int64_t c = 0;
    for (; c + 64 <= columns; c += 64) row.columns(c, 64);
    for (; c + 16 <= columns; c += 16) row.columns(c, 16);
    if (c == columns) continue;
    if (columns >= 16) {
      row.columns(columns - 16, 16);
    } else {
      row.columns(0, columns);
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

template <typename T>
void skip_epilogue(const ConvEpilogue& epilogue, const float* v, int64_t count, T* output) {
  with_activation(epilogue.stage.activation, [&]<Activation kAct>() {
    const OutputStage stage = epilogue.stage;
    const int32_t zero_point = epilogue.skip_zero_point;
    const float ratio = epilogue.skip_ratio;
    const float* __restrict value = v;
    const uint8_t* __restrict skip = epilogue.skip;
    T* __restrict out = output;
    for (int64_t i = 0; i < count; ++i) {
      const float sum = quant::add_skip(value[i], int32_t{skip[i]} - zero_point, ratio);
      out[i] = Finish<T>::template apply<kAct>(sum, stage);
    }
  });
}

void add(const BinaryCodes& op, const uint8_t* a, const uint8_t* b, int64_t count,
         uint8_t* output) {
  with_activation(op.stage.activation, [&]<Activation kAct>() {
    const BinaryCodes local = op;
    const uint8_t* __restrict x = a;
    const uint8_t* __restrict y = b;
    uint8_t* __restrict out = output;
    for (int64_t i = 0; i < count; ++i) {
      const float v = quant::add_codes(int32_t{x[i]} - local.a_zero_point, local.a_ratio,
                                       int32_t{y[i]} - local.b_zero_point, local.b_ratio);
      out[i] = Finish<uint8_t>::apply<kAct>(v, local.stage);
    }
  });
}

void multiply(const BinaryCodes& op, const uint8_t* a, const uint8_t* b, int64_t count,
              uint8_t* output) {
  with_activation(op.stage.activation, [&]<Activation kAct>() {
    const BinaryCodes local = op;
    const uint8_t* __restrict x = a;
    const uint8_t* __restrict y = b;
    uint8_t* __restrict out = output;
    for (int64_t i = 0; i < count; ++i) {
      const int32_t product =
          (int32_t{x[i]} - local.a_zero_point) * (int32_t{y[i]} - local.b_zero_point);
      out[i] =
          Finish<uint8_t>::apply<kAct>(static_cast<float>(product) * local.a_ratio, local.stage);
    }
  });
}

void affine(const uint8_t* q, int64_t count, int32_t zero_point, float multiplier, float offset,
            const OutputStage& stage, uint8_t* output) {
  with_activation(stage.activation, [&]<Activation kAct>() {
    const OutputStage local = stage;
    const uint8_t* __restrict x = q;
    uint8_t* __restrict out = output;
    for (int64_t i = 0; i < count; ++i) {
      const float v = quant::scale_accumulator(int32_t{x[i]} - zero_point, multiplier, offset);
      out[i] = Finish<uint8_t>::apply<kAct>(v, local);
    }
  });
}

void affine_columns(const uint8_t* q, int64_t rows, int64_t columns, int32_t zero_point,
                    const float* multiplier, const float* offset, const OutputStage& stage,
                    uint8_t* output) {
  with_activation(stage.activation, [&]<Activation kAct>() {
    const OutputStage local = stage;
    const float* __restrict m = multiplier;
    const float* __restrict b = offset;
    for (int64_t r = 0; r < rows; ++r) {
      const uint8_t* __restrict x = q + r * columns;
      uint8_t* __restrict out = output + r * columns;
      for (int64_t c = 0; c < columns; ++c) {
        const float v = quant::scale_accumulator(int32_t{x[c]} - zero_point, m[c], b[c]);
        out[c] = Finish<uint8_t>::apply<kAct>(v, local);
      }
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
  static const CodesKernels table{conv_epilogue<uint8_t>,
                                  conv_epilogue<float>,
                                  skip_epilogue<uint8_t>,
                                  skip_epilogue<float>,
                                  add,
                                  multiply,
                                  affine,
                                  affine_columns,
                                  average,
                                  sum};
  return table;
}

}  // namespace horizon::cpu::HORIZON_CAPABILITY
