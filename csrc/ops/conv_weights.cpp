#include "ops/conv_weights.h"

#include <c10/util/irange.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "ops/checks.h"

namespace horizon::ops {
namespace {

// |(q - z) * w| <= 255 * 128.
constexpr int64_t kMaxDepth = std::numeric_limits<int32_t>::max() / (255 * 128);

int64_t rounded_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

/// Groups of few channels, for which a matrix product each would be mostly padding.
bool is_grouped(const WeightShape& s, int64_t taps) {
  constexpr int64_t kMaxTaps = 256;
  constexpr int64_t kMaxChannels = int64_t{1} << 30;  // kernels index them in 32 bits
  const int64_t channels = s.group_in * s.groups;
  return s.groups > 1 && s.group_out < kPackedLanes && s.group_in < 2 * kPackedLanes &&
         channels >= 3 && channels <= kMaxChannels && taps <= kMaxTaps;
}

WeightOrder choose_order(const WeightShape& s) {
  const int64_t taps = s.kernel[0] * s.kernel[1];
  if (!is_grouped(s, taps)) return WeightOrder::kDense;
  return s.group_in == 1 && s.group_out == 1 ? WeightOrder::kDepthwise : WeightOrder::kGrouped;
}

}  // namespace

WeightShape weight_shape(at::IntArrayRef sizes, int64_t base, at::IntArrayRef stride,
                         at::IntArrayRef dilation, int64_t groups) {
  WeightShape s{base, groups, sizes[0], sizes[1], sizes[0] / groups, {1, 1}, {1, 1}};
  if (base == kBaseLinear) return s;
  s.kernel = {sizes[2], sizes[3]};
  if (base == kBaseConv) return s;
  s.out_channels = sizes[1] * groups;
  s.group_in = sizes[0] / groups;
  s.group_out = sizes[1];
  for (const auto axis : c10::irange(2)) {
    s.period[axis] = stride[axis] / std::gcd(stride[axis], dilation[axis]);
  }
  return s;
}

int64_t packed_depth(const WeightShape& shape, WeightOrder order, int64_t taps) {
  const int64_t channels =
      order == WeightOrder::kGrouped ? rounded_up(shape.group_in, kPackedDepth) : shape.group_in;
  return rounded_up(taps * channels, kPackedDepth);
}

int64_t packed_matrix_bytes(const WeightShape& s, WeightOrder order, const TapClass& taps) {
  if (order == WeightOrder::kDepthwise) {
    return taps.count[0] * rounded_up(taps.count[1], kPackedDepth) * s.out_channels;
  }
  const int64_t rows = order == WeightOrder::kDense ? s.group_out : s.out_channels;
  return rounded_up(rows, kPackedLanes) * packed_depth(s, order, taps.count[0] * taps.count[1]);
}

WeightLayout weight_layout(const WeightShape& s) {
  WeightLayout layout{choose_order(s), {}, 0};
  std::array<int64_t, 2> classes;
  for (const auto axis : c10::irange(2)) classes[axis] = std::min(s.period[axis], s.kernel[axis]);
  const int64_t sums = classes[0] * classes[1] * s.out_channels;
  layout.bytes = rounded_up(sums * static_cast<int64_t>(sizeof(int32_t)), 64);
  for (const auto y : c10::irange(classes[0])) {
    for (const auto x : c10::irange(classes[1])) {
      TapClass taps{{y, x}, {}, 0, layout.bytes};
      taps.sums = static_cast<int64_t>(layout.classes.size()) * s.out_channels;
      for (const auto axis : c10::irange(2)) {
        taps.count[axis] = (s.kernel[axis] - taps.first[axis] - 1) / s.period[axis] + 1;
      }
      const int64_t matrices = layout.order == WeightOrder::kDense ? s.groups : 1;
      layout.bytes += rounded_up(matrices * packed_matrix_bytes(s, layout.order, taps), 64);
      layout.classes.push_back(taps);
    }
  }
  layout.bytes += kPackedSlack;
  return layout;
}

void check_weight_size(const char* op, const char* name, c10::SymIntArrayRef sizes, int64_t base,
                       int64_t groups) {
  const size_t dim = base == kBaseLinear ? 2 : 4;
  const auto text = [&] { return c10::str(sizes); };
  HORIZON_CHECK_VALUE(sizes.size() == dim, op, name, c10::str(dim, "-dimensional"), text());
  for (const auto& size : sizes) HORIZON_CHECK_VALUE(size >= 1, op, name, "non-empty", text());
  if (base == kBaseLinear) {
    HORIZON_CHECK_VALUE(groups == 1, op, "groups", "1 for linear", groups);
  }
  HORIZON_CHECK_VALUE(groups >= 1, op, "groups", "at least 1", groups);
  HORIZON_CHECK_VALUE(sizes[0] % groups == 0, op, name,
                      c10::str("divisible into ", groups, " groups in dimension 0"), text());
  c10::SymInt depth = base == kBaseConvTranspose ? sizes[0] / groups : sizes[1];
  for (const auto axis : c10::irange(size_t{2}, dim)) {
    // So large a kernel has too many values in any case; the product must not overflow either.
    depth = sizes[axis] > kMaxDepth ? sizes[axis] : depth * sizes[axis];
    if (depth > kMaxDepth) break;
  }
  HORIZON_CHECK_VALUE(
      depth <= kMaxDepth, op, name,
      c10::str("of at most ", kMaxDepth, " values per output (sums must fit int32)"), depth);
}

}  // namespace horizon::ops
