#include "ops/cpu/kernels/elementwise.h"

#include "ops/cpu/kernels/code_writer.h"
#include "ops/cpu/kernels/lookup.h"

namespace horizon::cpu::HORIZON_CAPABILITY {
namespace {

/// Calls body(a, b, output) for each block of kCodes entries; the last one on copies if it is
/// shorter.
template <typename Body>
HORIZON_INLINE void over_pairs(const uint8_t* a, const uint8_t* b, int64_t count, uint8_t* output,
                               const Body& body) {
  int64_t i = 0;
  for (; i + kCodes <= count; i += kCodes) body(a + i, b + i, output + i);
  if (i == count) return;
  const CodeTail x(a + i, count - i);
  const CodeTail y(b + i, count - i);
  uint8_t codes[kCodes];
  body(x.codes, y.codes, codes);
  std::memcpy(output + i, codes, count - i);
}

/// body(from, output) on a block of which the first `count` entries matter. Where `end` is a block
/// away, it reads and writes in place: the caller goes on to write what follows.
template <typename Body>
HORIZON_INLINE void ragged_block(const uint8_t* from, int64_t count, const uint8_t* end,
                                 uint8_t* output, const Body& body) {
  if (end - from >= kCodes) return body(from, output);
  const CodeTail tail(from, count);
  uint8_t codes[kCodes];
  body(tail.codes, codes);
  std::memcpy(output, codes, count);
}

void add(const BinaryCodes& op, const uint8_t* a, const uint8_t* b, int64_t count,
         uint8_t* output) {
  const CodeWriter write(op.stage);
  const CentredCodes in_a(op.a_zero_point);
  const CentredCodes in_b(op.b_zero_point);
  const FloatVector a_ratio(op.a_ratio);
  const FloatVector b_ratio(op.b_ratio);
  over_pairs(a, b, count, output, [&](const uint8_t* x, const uint8_t* y, uint8_t* to) {
    write.block(to, [&](int64_t i) {
      return quant::add_codes(in_a.load(x + i), a_ratio, in_b.load(y + i), b_ratio);
    });
  });
}

void multiply(const BinaryCodes& op, const uint8_t* a, const uint8_t* b, int64_t count,
              uint8_t* output) {
  const CodeWriter write(op.stage);
  const CentredCodes in_a(op.a_zero_point);
  const CentredCodes in_b(op.b_zero_point);
  const FloatVector ratio(op.a_ratio);
  over_pairs(a, b, count, output, [&](const uint8_t* x, const uint8_t* y, uint8_t* to) {
    write.block(to, [&](int64_t i) {
      return quant::multiply_codes(in_a.load(x + i), in_b.load(y + i), ratio);
    });
  });
}

/// The map by arithmetic.
struct Affine {
  CodeWriter write;
  CentredCodes in;
  FloatVector multiplier, offset;

  explicit Affine(const AffineMap& map)
      : write(map.stage), in(map.zero_point), multiplier(map.multiplier), offset(map.offset) {}

  HORIZON_INLINE void block(const uint8_t* q, uint8_t* output) const {
    write.block(output,
                [&](int64_t i) { return quant::scale_value(in.load(q + i), multiplier, offset); });
  }

  HORIZON_INLINE void row(const uint8_t* q, int64_t width, uint8_t* output) const {
    int64_t i = 0;
    for (; i + kCodes <= width; i += kCodes) block(q + i, output + i);
    if (i == width) return;
    const CodeTail tail(q + i, width - i);
    uint8_t codes[kCodes];
    block(tail.codes, codes);
    std::memcpy(output + i, codes, width - i);
  }
};

constexpr int64_t kTableSize = 256;
/// So many codes are worth a table.
constexpr int64_t kLookupFrom = 4 * kTableSize;

/// Whether looking codes up is faster than computing them, if there are enough of them.
bool has_fast_lookup() {
#if defined(__AVX512BW__)
  return __builtin_cpu_supports("avx512vbmi") != 0;
#else
  return false;
#endif
}

void affine(const AffineMap& map, const uint8_t* q, int64_t rows, int64_t width, int64_t stride,
            uint8_t* output, int64_t output_stride) {
  static const bool fast_lookup = has_fast_lookup();
  const Affine compute(map);
  if (!fast_lookup || rows * width < kLookupFrom) {
    for (int64_t r = 0; r < rows; ++r)
      compute.row(q + r * stride, width, output + r * output_stride);
    return;
  }
  uint8_t codes[kTableSize];
  uint8_t table[kTableSize];
  for (int64_t i = 0; i < kTableSize; ++i) codes[i] = static_cast<uint8_t>(i);
  compute.row(codes, kTableSize, table);
  lookup_kernels().lookup(q, table, rows, width, stride, output, output_stride);
}

void affine_columns(const AffineMap& map, const float* multiplier, const float* offset,
                    const uint8_t* q, int64_t rows, int64_t columns, uint8_t* output) {
  const CodeWriter write(map.stage);
  const CentredCodes in(map.zero_point);
  const auto block = [&](const uint8_t* from, const float* m, const float* b, uint8_t* to) {
    write.block(to, [&](int64_t i) {
      return quant::scale_value(in.load(from + i), FloatVector::load(m + i),
                                FloatVector::load(b + i));
    });
  };
  const int64_t whole = columns / kCodes * kCodes;
  const int64_t left = columns - whole;
  float last_multiplier[kCodes] = {};
  float last_offset[kCodes] = {};
  std::memcpy(last_multiplier, multiplier + whole, left * sizeof(float));
  std::memcpy(last_offset, offset + whole, left * sizeof(float));
  const uint8_t* const end = q + rows * columns;
  for (int64_t r = 0; r < rows; ++r, q += columns, output += columns) {
    for (int64_t i = 0; i < whole; i += kCodes) {
      block(q + i, multiplier + i, offset + i, output + i);
    }
    if (left == 0) continue;
    ragged_block(q + whole, left, end, output + whole, [&](const uint8_t* from, uint8_t* to) {
      block(from, last_multiplier, last_offset, to);
    });
  }
}

void affine_planes(const AffineMap& map, const float* multiplier, const float* offset,
                   int64_t channels, const uint8_t* q, int64_t planes, int64_t size,
                   int64_t first_channel, uint8_t* output) {
  AffineMap own = map;
  const uint8_t* const end = q + planes * size;
  for (int64_t p = 0, c = first_channel; p < planes; ++p, q += size, output += size) {
    own.multiplier = multiplier[c];
    own.offset = offset[c];
    c = c + 1 == channels ? 0 : c + 1;
    if (size >= kLookupFrom) {
      affine(own, q, 1, size, size, output, size);
      continue;
    }
    const Affine compute(own);
    int64_t i = 0;
    for (; i + kCodes <= size; i += kCodes) compute.block(q + i, output + i);
    if (i == size) continue;
    ragged_block(q + i, size - i, end, output + i,
                 [&](const uint8_t* from, uint8_t* to) { compute.block(from, to); });
  }
}

}  // namespace

const ElementwiseKernels& elementwise_kernels() {
  static const ElementwiseKernels table{add, multiply, affine, affine_columns, affine_planes};
  return table;
}

}  // namespace horizon::cpu::HORIZON_CAPABILITY
