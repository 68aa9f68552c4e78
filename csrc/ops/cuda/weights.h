#pragma once

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "ops/cuda/fake_quantize.h"
#include "ops/cuda/kernels/weight_scale.h"
#include "ops/dense_weight.h"
#include "ops/weights.h"
#include "quant/grid.h"

// Weights on their grids: templates of a runner, as in quantized_maps.h. Results are those of the
// CPU's kernels to the bit.
namespace horizon::ops::cuda {

/// The grids of a weight's channels.
inline ChannelGrids weight_grids(const DenseWeight& layout, const at::Tensor& scale) {
  return {scale.const_data_ptr<float>(),
          nullptr,
          quant::kWeightMin,
          quant::kWeightMax,
          layout.outer,
          layout.channels,
          layout.inner};
}

template <typename Runner>
at::Tensor scale_of(const Runner& runner, const DenseWeight& layout) {
  at::Tensor scale = at::empty({layout.out_channels()}, layout.values.options().dtype(at::kFloat));
  with_float_type(layout.values.scalar_type(), [&](auto zero) {
    using S = decltype(zero);
    WeightScale<S, ComputeType<S>> body;
    body.weight = layout.values.template const_data_ptr<S>();
    body.outer = layout.outer;
    body.channels = layout.channels;
    body.inner = layout.inner;
    body.scale = scale.template mutable_data_ptr<float>();
    runner(Grid{static_cast<uint32_t>(layout.out_channels())}, body);
  });
  return scale;
}

template <typename Runner>
at::Tensor weight_scale(const Runner& runner, const at::Tensor& weight, int64_t base,
                        int64_t groups) {
  check_weight("weight_scale", weight, base, groups);
  return scale_of(runner, dense_weight(weight, base, groups));
}

template <typename Runner>
at::Tensor quantize_weight(const Runner& runner, const at::Tensor& weight, const at::Tensor& scale,
                           int64_t base, int64_t groups) {
  check_quantize_weight(weight, scale, base, groups);
  const DenseWeight layout = dense_weight(weight, base, groups);
  const at::Tensor scales = scale.to(at::kFloat).contiguous();
  at::Tensor codes = at::empty_like(layout.values, layout.values.options().dtype(at::kChar),
                                    at::MemoryFormat::Preserve);
  with_float_type(weight.scalar_type(), [&](auto zero) {
    using S = decltype(zero);
    EncodeValues<S, ComputeType<S>, ChannelGrids, int8_t> body;
    body.total = weight.numel();
    body.grids = weight_grids(layout, scales);
    body.x = layout.values.template const_data_ptr<S>();
    body.codes = codes.template mutable_data_ptr<int8_t>();
    runner(body.grid(), body);
  });
  return in_layout_of(weight, codes);
}

template <typename Runner>
at::Tensor fake_quantize_weight(const Runner& runner, const at::Tensor& weight, int64_t base,
                                int64_t groups) {
  check_weight("fake_quantize_weight", weight, base, groups);
  const DenseWeight layout = dense_weight(weight, base, groups);
  const at::Tensor scale = scale_of(runner, layout);
  return in_layout_of(weight, fake_quantize_values(runner, layout.values,
                                                   weight_grids(layout, scale), at::Tensor()));
}

}  // namespace horizon::ops::cuda
