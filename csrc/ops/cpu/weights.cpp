#include "ops/weights.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <atomic>
#include <cmath>
#include <vector>

#include "ops/checks.h"
#include "ops/cpu/channel_grids.h"
#include "ops/cpu/dense.h"
#include "ops/cpu/fused_scratch.h"
#include "ops/cpu/kernels/fake_quantize.h"
#include "ops/cpu/kernels/observe.h"
#include "ops/dense_weight.h"
#include "quant/grid.h"
#include "quant/qparams.h"

namespace horizon::ops {
namespace {

const char* at_element(const DenseWeight& layout, int64_t element) {
  return static_cast<const char*>(layout.values.const_data_ptr()) +
         element * static_cast<int64_t>(layout.values.element_size());
}

std::vector<double> abs_max(const DenseWeight& layout) {
  std::vector<double> peaks(static_cast<size_t>(layout.out_channels()), 0.0);
  if (layout.values.numel() == 0) return peaks;
  const auto type = cpu::float_type(layout.values.scalar_type());
  const int64_t grain =
      std::max<int64_t>(1, 32768 / std::max<int64_t>(1, layout.outer * layout.inner));
  for (int64_t block = 0; block < layout.blocks; ++block) {
    const void* data = at_element(layout, block * layout.block_size());
    double* out = peaks.data() + block * layout.channels;
    at::parallel_for(0, layout.channels, grain, [&](int64_t begin, int64_t end) {
      cpu::observe_kernels().channel_abs_max(type, data, layout.outer, layout.channels,
                                             layout.inner, begin, end, out);
    });
  }
  return peaks;
}

at::Tensor scale_of(const DenseWeight& layout) {
  const std::vector<double> peaks = abs_max(layout);
  at::Tensor scale = at::empty({layout.out_channels()}, at::kFloat);
  auto* out = scale.mutable_data_ptr<float>();
  for (size_t c = 0; c < peaks.size(); ++c) {
    out[c] = quant::weight_scale(static_cast<float>(peaks[c]));
  }
  return scale;
}

// Runs body(block, begin, end, grids) over the elements of each block, in parallel.
template <typename Body>
void for_blocks(const DenseWeight& layout, const float* scale, const Body& body) {
  if (layout.values.numel() == 0) return;
  for (int64_t block = 0; block < layout.blocks; ++block) {
    const cpu::ChannelTable table(scale + block * layout.channels, nullptr, layout.outer,
                                  layout.channels, layout.inner, quant::kWeightMin,
                                  quant::kWeightMax);
    cpu::parallel_blocks(layout.block_size(), [&](int64_t begin, int64_t end) {
      body(block * layout.block_size(), begin, end, table.grids());
    });
  }
}

at::Tensor weight_scale_cpu(const at::Tensor& weight, int64_t base, int64_t groups) {
  check_weight("weight_scale", weight, base, groups);
  return scale_of(dense_weight(weight, base, groups));
}

// A bad scale is blamed on the weight if that is where it came from.
void check_scales(const at::Tensor& scale, const DenseWeight& layout) {
  constexpr const char* kOp = "quantize_weight";
  for (int64_t c = 0; c < scale.numel(); ++c) {
    const float value = scale.const_data_ptr<float>()[c];
    if (!std::isfinite(value)) {
      for (const double peak : abs_max(layout)) {
        HORIZON_CHECK_VALUE(std::isfinite(peak), kOp, "weight", "finite",
                            std::isnan(peak) ? "nan" : "inf");
      }
    }
    check_scale_value(kOp, "scale", value);
  }
}

at::Tensor quantize_weight_cpu(const at::Tensor& weight, const at::Tensor& scale, int64_t base,
                               int64_t groups) {
  constexpr const char* kOp = "quantize_weight";
  check_quantize_weight(weight, scale, base, groups);
  const DenseWeight layout = dense_weight(weight, base, groups);
  const at::Tensor scales = scale.to(at::kFloat).contiguous();
  check_scales(scales, layout);
  at::Tensor codes = at::empty_like(layout.values, layout.values.options().dtype(at::kChar),
                                    at::MemoryFormat::Preserve);
  auto* out = codes.mutable_data_ptr<int8_t>();
  const auto type = cpu::float_type(weight.scalar_type());
  std::atomic<bool> valid = true;
  for_blocks(layout, scales.const_data_ptr<float>(),
             [&](int64_t start, int64_t begin, int64_t end, const cpu::ChannelGrids& grids) {
               if (!cpu::fake_quantize_kernels().quantize_channels(
                       type, at_element(layout, start), out + start, begin, end, grids)) {
                 valid = false;
               }
             });
  HORIZON_CHECK_VALUE(valid, kOp, "weight", "finite", "nan");
  return in_layout_of(weight, codes);
}

// Writes the weight on its grid into `result`, which is laid out as layout.values.
void write_on_grid(const DenseWeight& layout, const at::Tensor& result) {
  const at::Tensor scale = scale_of(layout);
  auto* out = static_cast<char*>(result.mutable_data_ptr());
  const auto width = static_cast<int64_t>(result.element_size());
  const auto type = cpu::float_type(result.scalar_type());
  for_blocks(layout, scale.const_data_ptr<float>(),
             [&](int64_t start, int64_t begin, int64_t end, const cpu::ChannelGrids& grids) {
               cpu::fake_quantize_kernels().per_channel(type, at_element(layout, start),
                                                        out + start * width, nullptr, begin, end,
                                                        grids);
             });
}

at::Tensor fake_quantize_weight_cpu(const at::Tensor& weight, int64_t base, int64_t groups) {
  check_weight("fake_quantize_weight", weight, base, groups);
  const DenseWeight layout = dense_weight(weight, base, groups);
  const at::Tensor result = at::empty_like(layout.values, at::MemoryFormat::Preserve);
  write_on_grid(layout, result);
  return in_layout_of(weight, result);
}

TORCH_LIBRARY_IMPL(horizon, CPU, m) {
  m.impl("weight_scale", &weight_scale_cpu);
  m.impl("quantize_weight", &quantize_weight_cpu);
  m.impl("fake_quantize_weight", &fake_quantize_weight_cpu);
}

}  // namespace

at::Tensor scratch_weight(const at::Tensor& weight, int64_t base, int64_t groups) {
  const DenseWeight layout = dense_weight(weight, base, groups);
  const at::Tensor& like = layout.values;
  const at::Tensor result =
      scratch_tensor(Scratch::kWeight, like.sizes(), like.strides(), like.scalar_type());
  write_on_grid(layout, result);
  return result;
}

}  // namespace horizon::ops
