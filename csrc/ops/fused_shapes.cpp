#include "ops/fused_shapes.h"

#include <ATen/ExpandUtils.h>

#include <numeric>

namespace horizon::ops {
namespace {

constexpr int64_t kLaneGroup = 32;
constexpr int64_t kShortestRow = 256;

}  // namespace

c10::SymInt fused_extent(const FusedBackwardArgs& conv, const c10::SymInt& extent,
                         const c10::SymInt& kernel, size_t axis) {
  const bool sides = conv.padding.size() == 4;
  const int64_t before = conv.padding[axis];
  const int64_t after = sides ? conv.padding[axis + 2] : before;
  const c10::SymInt reach = (kernel - 1) * conv.dilation[axis] + 1;
  if (static_cast<Base>(conv.base) == Base::kConvTranspose2d) {
    return (extent - 1) * conv.stride[axis] - before - after + reach + conv.output_padding[axis];
  }
  return (extent + before + after - reach) / conv.stride[axis] + 1;
}

int64_t fused_channels(const at::Tensor& weight, int64_t base, int64_t groups) {
  if (static_cast<Base>(base) != Base::kConvTranspose2d) {
    return weight.sym_size(0).guard_int(__FILE__, __LINE__);
  }
  return weight.sym_size(1).guard_int(__FILE__, __LINE__) * groups;
}

SymSizes fused_z_sizes(const FusedBackwardArgs& conv) {
  const auto in = conv.input.sym_sizes();
  const int64_t channels = fused_channels(conv.weight, conv.base, conv.groups);
  if (static_cast<Base>(conv.base) == Base::kLinear) {
    SymSizes sizes(in.begin(), in.end());
    sizes.back() = channels;
    return sizes;
  }
  const size_t at = in.size() - 2;
  return {in.size() == 4 ? in[0] : c10::SymInt(1), channels,
          fused_extent(conv, in[at], conv.weight.sym_size(2), 0),
          fused_extent(conv, in[at + 1], conv.weight.sym_size(3), 1)};
}

FusedBackwardArgs fused_convolution(const FusedArgs& args) {
  FusedBackwardArgs conv;
  conv.input = args.input;
  conv.weight = args.weight;
  conv.base = args.base;
  conv.stride = args.stride;
  conv.padding = args.padding;
  conv.dilation = args.dilation;
  conv.output_padding = args.output_padding;
  conv.groups = args.groups;
  return conv;
}

bool fused_channels_last(const FusedArgs& args) {
  if (static_cast<Base>(args.base) == Base::kLinear) return false;
  const auto last = [](const at::Tensor& t) {
    return t.dim() == 4 && t.suggest_memory_format() == at::MemoryFormat::ChannelsLast;
  };
  return last(args.input) || last(args.weight);
}

int64_t tiled_length(int64_t channels) {
  int64_t length = channels;
  if (channels < 2 * kLaneGroup || channels % 8 == 0) {
    length *= kLaneGroup / std::gcd(channels, kLaneGroup);
  }
  while (length < kShortestRow) length *= 2;
  return length;
}

FusedRows fused_rows(at::IntArrayRef z_sizes, int64_t channels, bool inner) {
  FusedRows rows;
  rows.total = c10::multiply_integers(z_sizes);
  rows.channels = channels;
  rows.per_row = !inner;
  rows.length = inner ? tiled_length(channels) : z_sizes[2] * z_sizes[3];
  return rows;
}

FusedRows flat_rows(int64_t total) { return {total, kShortestRow, 1, false}; }

c10::SymInt flat_mask_bytes(const c10::SymInt& total) { return (total + 7) / 8; }

c10::SymInt mask_bytes(const SymSizes& z_sizes, int64_t channels, bool inner) {
  if (!inner) return z_sizes[0] * z_sizes[1] * ((z_sizes[2] * z_sizes[3] + 7) / 8);
  c10::SymInt total = 1;
  for (const auto& size : z_sizes) total *= size;
  const int64_t length = tiled_length(channels);
  if (length % 8 == 0) return flat_mask_bytes(total);
  return (total + (length - 1)) / length * ((length + 7) / 8);
}

FusedOutput fused_output(const SymSizes& z_sizes, const std::optional<at::Tensor>& skip) {
  if (!skip.has_value()) return {z_sizes, true};
  FusedOutput output;
  output.sizes = at::infer_size_symint(z_sizes, skip->sym_sizes());
  output.as_z = c10::SymIntArrayRef(output.sizes) == c10::SymIntArrayRef(z_sizes);
  return output;
}

bool drops_batch(const FusedArgs& args) {
  return static_cast<Base>(args.base) != Base::kLinear && args.input.dim() == 3 &&
         (!args.skip.has_value() || args.skip->dim() <= 3);
}

}  // namespace horizon::ops
