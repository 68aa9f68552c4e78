#pragma once

#include "ops/cpu/kernels/codes.h"
#include "ops/cpu/kernels/float_vector.h"

// The end of every integer op on vectors. For kernel files only.
namespace horizon::cpu::HORIZON_CAPABILITY {
namespace {

/// Steps 4 and 5 of the integer arithmetic.
struct CodeWriter {
  FloatVector zero_point, low, high;

  explicit CodeWriter(const OutputStage& stage) : zero_point(stage.zero_point) {
    const quant::CodeEnds ends = quant::code_ends(stage.activation, stage.six, stage.zero_point);
    low = FloatVector(ends.low);
    high = FloatVector(ends.high);
  }

  HORIZON_INLINE IntVector code(FloatVector v) const {
    return at_most(at_least(v + zero_point, low), high).rounded();
  }

  /// Writes the codes of `value(first)` for first = 0, kLanes, 2 kLanes, 3 kLanes.
  template <typename Value>
  HORIZON_INLINE void block(uint8_t* output, const Value& value) const {
    constexpr int64_t kLanes = FloatVector::kLanes;
    const IntVector codes[4] = {code(value(0)), code(value(kLanes)), code(value(2 * kLanes)),
                                code(value(3 * kLanes))};
    store_bytes(codes, output);
  }
};

/// A block of codes whose first `count` entries are those at `from`.
struct CodeTail {
  uint8_t codes[kCodes] = {};

  CodeTail(const uint8_t* from, int64_t count) { std::memcpy(codes, from, count); }
};

}  // namespace
}  // namespace horizon::cpu::HORIZON_CAPABILITY
