#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "ops/fused.h"
#include "ops/fused_rows.h"
#include "ops/weights.h"

namespace horizon::ops {

using SymSizes = std::vector<c10::SymInt>;

/// Spatial size of a convolution's result along one axis (0: height, 1: width).
c10::SymInt fused_extent(const FusedBackwardArgs& conv, const c10::SymInt& extent,
                         const c10::SymInt& kernel, size_t axis);

/// The sizes of z, with a batch dimension of 1 for an unbatched image.
SymSizes fused_z_sizes(const FusedBackwardArgs& conv);

/// The geometry of a group's convolution, which is all that the functions above read.
FusedBackwardArgs fused_convolution(const FusedArgs& args);

int64_t fused_channels(const at::Tensor& weight, int64_t base, int64_t groups);

/// Whether z, and all that is laid out as z, is channels last: the input or the weight is.
bool fused_channels_last(const FusedArgs& args);

/// Whether the channel is the innermost index of z.
inline bool channel_inner(int64_t base, bool channels_last) {
  return channels_last || static_cast<Base>(base) == Base::kLinear;
}

/// How z, with the given sizes, is cut into rows (fused_rows.h).
FusedRows fused_rows(at::IntArrayRef z_sizes, int64_t channels, bool inner);
/// The rows of a tensor that is larger than z, because the skip is; no channels.
FusedRows flat_rows(int64_t total);

/// Pixels that one row holds in the channels-last layout, times channels.
int64_t tiled_length(int64_t channels);
/// Bytes of a mask laid out as z.
c10::SymInt mask_bytes(const SymSizes& z_sizes, int64_t channels, bool inner);
c10::SymInt flat_mask_bytes(const c10::SymInt& total);

/// Sizes of z + skip, and whether they are those of z.
struct FusedOutput {
  SymSizes sizes;
  bool as_z = true;
};
FusedOutput fused_output(const SymSizes& z_sizes, const std::optional<at::Tensor>& skip);

/// Whether the result loses the batch dimension that an unbatched image was given.
bool drops_batch(const FusedArgs& args);

}  // namespace horizon::ops
