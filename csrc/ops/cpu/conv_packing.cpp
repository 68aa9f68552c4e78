#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <cstring>

#include "ops/conv_weights.h"

namespace horizon::ops {
namespace {

/// Moves weights between rows of natural order, [out_channels][kh][kw][in / groups], and packed
/// words of kPackedDepth.
template <bool kPack>
class Mover {
 public:
  using Natural = std::conditional_t<kPack, const int8_t, int8_t>;
  using Packed = std::conditional_t<kPack, int8_t, const int8_t>;

  Mover(const WeightShape& shape, const WeightLayout& layout, Natural* natural, Packed* packed)
      : s_(shape), layout_(layout), natural_(natural), packed_(packed) {}

  void run() const {
    constexpr int64_t kGrain = int64_t{1} << 16;
    const int64_t row = s_.group_in * s_.kernel[0] * s_.kernel[1];
    at::parallel_for(0, s_.out_channels, std::max<int64_t>(1, kGrain / row),
                     [&](int64_t begin, int64_t end) {
                       for (const auto o : c10::irange(begin, end)) {
                         for (const auto& taps : layout_.classes) move_output(taps, o);
                       }
                     });
  }

 private:
  void move_output(const TapClass& taps, int64_t o) const {
    const bool backwards = s_.base == kBaseConvTranspose;
    const int64_t kernel_taps = s_.kernel[0] * s_.kernel[1];
    for (const auto i : c10::irange(taps.count[0])) {
      for (const auto j : c10::irange(taps.count[1])) {
        const int64_t y = taps.first[0] + (backwards ? taps.count[0] - 1 - i : i) * s_.period[0];
        const int64_t x = taps.first[1] + (backwards ? taps.count[1] - 1 - j : j) * s_.period[1];
        Natural* natural = natural_ + (o * kernel_taps + y * s_.kernel[1] + x) * s_.group_in;
        if (layout_.order == WeightOrder::kDepthwise) {
          const int64_t words = (taps.count[1] + kPackedDepth - 1) / kPackedDepth;
          const int64_t word = (i * words + j / kPackedDepth) * s_.out_channels + o;
          move(natural, packed_ + taps.data + word * kPackedDepth + j % kPackedDepth, 1);
        } else {
          move_tap(taps, o, i * taps.count[1] + j, natural);
        }
      }
    }
  }

  /// The channels of one tap of one output in a matrix.
  void move_tap(const TapClass& taps, int64_t o, int64_t tap, Natural* natural) const {
    const bool dense = layout_.order == WeightOrder::kDense;
    const int64_t group = dense ? o / s_.group_out : 0;
    const int64_t row = dense ? o % s_.group_out : o;
    const int64_t depth = packed_depth(s_, layout_.order, taps.count[0] * taps.count[1]);
    const int64_t stride = packed_depth(s_, layout_.order, 1);
    Packed* block = packed_ + taps.data + group * packed_matrix_bytes(s_, layout_.order, taps) +
                    row / kPackedLanes * kPackedLanes * depth + row % kPackedLanes * kPackedDepth;
    int64_t k = tap * (dense ? s_.group_in : stride);
    for (int64_t c = 0; c < s_.group_in;) {
      const int64_t count = std::min(kPackedDepth - k % kPackedDepth, s_.group_in - c);
      move(natural + c, block + k / kPackedDepth * kPackedLanes * kPackedDepth + k % kPackedDepth,
           count);
      k += count;
      c += count;
    }
  }

  static void move(Natural* natural, Packed* packed, int64_t count) {
    if constexpr (kPack) {
      for (const auto i : c10::irange(count)) packed[i] = natural[i];
    } else {
      for (const auto i : c10::irange(count)) natural[i] = packed[i];
    }
  }

  const WeightShape& s_;
  const WeightLayout& layout_;
  Natural* natural_;
  Packed* packed_;
};

/// The sums of each class and output.
void write_sums(const WeightShape& s, const WeightLayout& layout, const int8_t* rows,
                int8_t* packed) {
  const int64_t row = s.group_in * s.kernel[0] * s.kernel[1];
  for (const auto& taps : layout.classes) {
    for (const auto o : c10::irange(s.out_channels)) {
      int32_t sum = 0;
      for (int64_t y = taps.first[0]; y < s.kernel[0]; y += s.period[0]) {
        for (int64_t x = taps.first[1]; x < s.kernel[1]; x += s.period[1]) {
          const int8_t* w = rows + o * row + (y * s.kernel[1] + x) * s.group_in;
          for (const auto c : c10::irange(s.group_in)) sum += w[c];
        }
      }
      std::memcpy(packed + (taps.sums + o) * static_cast<int64_t>(sizeof sum), &sum, sizeof sum);
    }
  }
}

}  // namespace

at::Tensor packed_codes(const at::Tensor& weight, const WeightShape& s,
                        const WeightLayout& layout) {
  at::Tensor rows = weight;
  if (s.base == kBaseConv) {
    rows = weight.permute({0, 2, 3, 1});
  } else if (s.base == kBaseConvTranspose) {
    rows = weight.reshape({s.groups, s.group_in, s.group_out, s.kernel[0], s.kernel[1]})
               .permute({0, 2, 3, 4, 1});
  }
  rows = rows.contiguous();
  const at::Tensor packed = at::zeros({layout.bytes}, weight.options());
  const auto* from = rows.const_data_ptr<int8_t>();
  auto* to = packed.mutable_data_ptr<int8_t>();
  Mover<true>(s, layout, from, to).run();
  write_sums(s, layout, from, to);
  return packed;
}

at::Tensor unpacked_codes(const at::Tensor& packed, at::IntArrayRef sizes, const WeightShape& s,
                          const WeightLayout& layout) {
  const at::Tensor rows =
      at::empty({s.groups, s.group_out, s.kernel[0], s.kernel[1], s.group_in}, packed.options());
  const at::Tensor bytes = packed.contiguous();
  Mover<false>(s, layout, rows.mutable_data_ptr<int8_t>(), bytes.const_data_ptr<int8_t>()).run();
  if (s.base == kBaseConvTranspose) {
    return rows.permute({0, 4, 1, 2, 3}).reshape(sizes).contiguous();
  }
  return rows.permute({0, 1, 4, 2, 3}).reshape(sizes).contiguous();
}

}  // namespace horizon::ops
