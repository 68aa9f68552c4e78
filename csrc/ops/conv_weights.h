#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <array>

// How the weights of an integer convolution are laid out once they are packed. The layout depends
// on the layer alone, not on the machine: a packed weight may be saved, and read anywhere.
//
// A packed weight is a vector of bytes: the sum of each output channel's weights (int32,
// [classes][out_channels]), then, from a multiple of 64 on, the classes one after the other, then
// kPackedSlack bytes that a kernel may read. A class holds the taps that serve the same outputs:
// all of a convolution's, and of a transposed one those of one residue modulo its stride.
namespace horizon::ops {

inline constexpr int64_t kBaseConv = 0;
inline constexpr int64_t kBaseConvTranspose = 1;
inline constexpr int64_t kBaseLinear = 2;
inline constexpr int64_t kBaseCount = 3;

/// Outputs that lie side by side in a packed weight, and inputs of each that do.
inline constexpr int64_t kPackedLanes = 16;
inline constexpr int64_t kPackedDepth = 4;
inline constexpr int64_t kPackedSlack = 1024;

enum class WeightOrder {
  /// Matrices of [group][outputs / 16][depth / 4][16][4], depth = taps * channels of a group.
  kDense,
  /// The same without regard to groups, which are small: [outputs / 16][depth / 4][16][4], with
  /// the channels of each tap rounded up to four.
  kGrouped,
  /// One input per output: [rows of taps][taps of a row / 4][channels][4].
  kDepthwise,
};

/// What the layout depends on.
struct WeightShape {
  int64_t base, groups;
  int64_t out_channels, group_in, group_out;
  std::array<int64_t, 2> kernel;
  /// Taps k and k + period serve the same outputs.
  std::array<int64_t, 2> period;
};

/// Taps first + i * period, i < count, by axis; backwards for a transposed convolution, so that
/// they run through the input in memory order.
struct TapClass {
  std::array<int64_t, 2> first, count;
  int64_t sums;  ///< the first one's index
  int64_t data;  ///< in bytes from the start
};

struct WeightLayout {
  WeightOrder order;
  c10::SmallVector<TapClass, 4> classes;
  int64_t bytes;
};

/// The shape of a weight whose sizes, strides and groups have been checked.
WeightShape weight_shape(at::IntArrayRef sizes, int64_t base, at::IntArrayRef stride,
                         at::IntArrayRef dilation, int64_t groups);

WeightLayout weight_layout(const WeightShape& shape);

/// Entries of a row of weights in `taps` taps of a class, rounded up to kPackedDepth.
int64_t packed_depth(const WeightShape& shape, WeightOrder order, int64_t taps);

/// Bytes of one group's matrix (kDense), or of all groups (otherwise), of a class.
int64_t packed_matrix_bytes(const WeightShape& shape, WeightOrder order, const TapClass& taps);

/// Refuses weight sizes that no convolution has, and sums that could overflow int32. `name` is the
/// argument's.
void check_weight_size(const char* op, const char* name, c10::SymIntArrayRef sizes, int64_t base,
                       int64_t groups);

/// The packed form of int8 codes [out, in / groups, kh, kw] (transposed: [in, out / groups, kh,
/// kw]; linear: [out, in]) whose sizes have been checked. CPU.
at::Tensor packed_codes(const at::Tensor& weight, const WeightShape& shape,
                        const WeightLayout& layout);

/// The codes of a packed weight, contiguous, with the sizes of `packed_codes`' argument.
at::Tensor unpacked_codes(const at::Tensor& packed, at::IntArrayRef sizes, const WeightShape& shape,
                          const WeightLayout& layout);

}  // namespace horizon::ops
