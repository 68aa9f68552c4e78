#include "ops/quantized_pool.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <c10/util/irange.h>
#include <torch/library.h>

#include <algorithm>
#include <vector>

#include "ops/cpu/kernels/codes.h"
#include "ops/cpu/nhwc.h"
#include "ops/integer_checks.h"

namespace horizon::ops {
namespace {

constexpr int64_t kGrain = 1 << 15;

struct Grids {
  CodeGrid x, y;

  Grids(const char* op, const at::Tensor& q_scale, const at::Tensor& q_zero_point,
        const at::Tensor& scale, const at::Tensor& zero_point)
      : x(read_grid(op, "q_scale", q_scale, "q_zero_point", q_zero_point)),
        y(read_grid(op, "scale", scale, "zero_point", zero_point)) {
    check_constant(op, "q's scale over the result's", quant::scale_ratio(x.scale, y.scale));
  }

  /// Never larger than the ratio of the scales, which is checked once.
  float multiplier(int64_t count) const {
    return quant::average_multiplier(x.scale, y.scale, static_cast<double>(count));
  }

  cpu::OutputStage stage() const {
    return {quant::Activation::kNone, 0.0F, static_cast<float>(y.zero_point)};
  }
};

/// Rows or columns [begin, end) of the image, and how many entries the window counts with padding.
struct Range {
  int64_t begin, end, padded;
};

/// The code of a centred sum too large for int32.
uint8_t average_code(int64_t centred_sum, float multiplier, const cpu::OutputStage& stage) {
  return quant::to_code(static_cast<float>(centred_sum) * multiplier, stage.zero_point);
}

/// A window of more than kMaxWindow pixels.
void average_large(const uint8_t* q, int64_t row_stride, int64_t height, int64_t width,
                   int64_t channels, int32_t zero_point, float multiplier,
                   const cpu::OutputStage& stage, uint8_t* output) {
  std::vector<int64_t> sums(channels, 0);
  for (const auto y : c10::irange(height)) {
    const uint8_t* row = q + y * row_stride;
    for (const auto i : c10::irange(width * channels)) sums[i % channels] += row[i] - zero_point;
  }
  for (const auto c : c10::irange(channels)) output[c] = average_code(sums[c], multiplier, stage);
}

/// The windows along one axis of an adaptive pooling: each begins where its share of the input
/// does, and they overlap where the sizes do not divide.
struct AdaptiveAxis {
  int64_t size, count;

  Range operator()(int64_t i) const {
    const int64_t begin = i * size / count;
    const int64_t end = ((i + 1) * size + count - 1) / count;
    return {begin, end, end - begin};
  }
};

struct PoolingAxis {
  int64_t size, count, kernel, stride, padding;

  Range operator()(int64_t i) const {
    const int64_t begin = i * stride - padding;
    const int64_t end = std::min(begin + kernel, size + padding);
    const int64_t inside = std::clamp<int64_t>(begin, 0, size);
    return {inside, std::max(inside, std::min(end, size)), end - begin};
  }
};

/// Averages the windows of an NHWC image; `divisor` gives the count of one from its ranges.
template <typename Axis, typename Divisor>
void average_windows(const at::Tensor& input, const Axis& y_axis, const Axis& x_axis,
                     const Grids& grids, const Divisor& divisor, uint8_t* output) {
  const int64_t channels = input.size(1);
  const int64_t row_stride = input.size(3) * channels;
  const auto* image = input.const_data_ptr<uint8_t>();
  const int64_t count = y_axis.count * x_axis.count;
  if (count == 0 || input.size(0) == 0) return;
  const cpu::OutputStage stage = grids.stage();
  const int64_t share = input.size(2) * row_stride / count + 1;
  const int64_t grain = std::max<int64_t>(1, kGrain / share);
  at::parallel_for(0, input.size(0) * count, grain, [&](int64_t begin, int64_t end) {
    for (const auto i : c10::irange(begin, end)) {
      const Range rows = y_axis(i % count / x_axis.count);
      const Range columns = x_axis(i % x_axis.count);
      const uint8_t* from = image + i / count * input.size(2) * row_stride +
                            rows.begin * row_stride + columns.begin * channels;
      const int64_t height = rows.end - rows.begin;
      const int64_t width = columns.end - columns.begin;
      const auto average =
          height * width > cpu::kMaxWindow ? average_large : cpu::codes_kernels().average;
      average(from, row_stride, height, width, channels, grids.x.zero_point,
              grids.multiplier(divisor(rows, columns)), stage, output + i * channels);
    }
  });
}

template <typename Axis, typename Divisor>
at::Tensor pool(const at::Tensor& q, const QuantizedPoolShape& shape, const Axis& y_axis,
                const Axis& x_axis, const Grids& grids, const Divisor& divisor) {
  const NhwcResult result(concrete(shape.sizes), at::kByte, shape.format);
  average_windows(as_nhwc(q), y_axis, x_axis, grids, divisor, static_cast<uint8_t*>(result.data()));
  return result.finish();
}

at::Tensor quantized_avg_pool2d_cpu(const at::Tensor& q, const at::Tensor& q_scale,
                                    const at::Tensor& q_zero_point, at::IntArrayRef kernel_size,
                                    at::IntArrayRef stride, at::IntArrayRef padding, bool ceil_mode,
                                    bool count_include_pad, std::optional<int64_t> divisor_override,
                                    const at::Tensor& scale, const at::Tensor& zero_point) {
  const auto shape =
      check_quantized_avg_pool2d(q, q_scale, q_zero_point, kernel_size, stride, padding, ceil_mode,
                                 divisor_override, scale, zero_point);
  const Grids grids("quantized_avg_pool2d", q_scale, q_zero_point, scale, zero_point);
  const auto sizes = concrete(shape.sizes);
  const auto axis = [&](int i) {
    return PoolingAxis{q.size(i - 2), sizes[sizes.size() - 2 + i], shape.kernel[i], shape.stride[i],
                       shape.padding[i]};
  };
  return pool(q, shape, axis(0), axis(1), grids, [&](const Range& rows, const Range& columns) {
    if (divisor_override.has_value()) return *divisor_override;
    if (count_include_pad) return rows.padded * columns.padded;
    return std::max<int64_t>(1, (rows.end - rows.begin) * (columns.end - columns.begin));
  });
}

int64_t window_size(const Range& rows, const Range& columns) {
  return rows.padded * columns.padded;
}

at::Tensor quantized_adaptive_avg_pool2d_cpu(const at::Tensor& q, const at::Tensor& q_scale,
                                             const at::Tensor& q_zero_point,
                                             at::IntArrayRef output_size, const at::Tensor& scale,
                                             const at::Tensor& zero_point) {
  const auto shape =
      check_quantized_adaptive_avg_pool2d(q, q_scale, q_zero_point, output_size, scale, zero_point);
  const Grids grids("quantized_adaptive_avg_pool2d", q_scale, q_zero_point, scale, zero_point);
  return pool(q, shape, AdaptiveAxis{q.size(-2), output_size[0]},
              AdaptiveAxis{q.size(-1), output_size[1]}, grids, window_size);
}

/// Means of rows [rows][count] of codes.
void mean_rows(const uint8_t* q, int64_t rows, int64_t count, const Grids& grids, float multiplier,
               uint8_t* output) {
  const cpu::OutputStage stage = grids.stage();
  const int64_t grain = std::max<int64_t>(1, kGrain / count);
  at::parallel_for(0, rows, grain, [&](int64_t begin, int64_t end) {
    for (const auto r : c10::irange(begin, end)) {
      int64_t sum = -count * grids.x.zero_point;
      for (int64_t first = 0; first < count; first += cpu::kMaxWindow) {
        const int64_t part = std::min(cpu::kMaxWindow, count - first);
        sum += cpu::codes_kernels().sum(q + r * count + first, part);
      }
      output[r] = average_code(sum, multiplier, stage);
    }
  });
}

at::Tensor quantized_mean_cpu(const at::Tensor& q, const at::Tensor& q_scale,
                              const at::Tensor& q_zero_point, at::IntArrayRef dim, bool keepdim,
                              const at::Tensor& scale, const at::Tensor& zero_point) {
  const auto shape =
      check_quantized_mean(q, q_scale, q_zero_point, dim, keepdim, scale, zero_point);
  const Grids grids("quantized_mean", q_scale, q_zero_point, scale, zero_point);
  const auto sizes = concrete(shape.sizes);
  const at::Tensor out = at::empty(sizes, q.options(), shape.format);
  if (out.numel() == 0) return out;
  const int64_t count = shape.count.guard_int(__FILE__, __LINE__);
  const float multiplier = grids.multiplier(count);
  const bool over_pixels = q.dim() == 4 && !shape.reduced[0] && !shape.reduced[1] &&
                           shape.reduced[2] && shape.reduced[3];
  if (over_pixels && result_format(q) == at::MemoryFormat::ChannelsLast) {
    average_windows(as_nhwc(q), AdaptiveAxis{q.size(2), 1}, AdaptiveAxis{q.size(3), 1}, grids,
                    window_size, out.mutable_data_ptr<uint8_t>());
    return out;
  }
  // The averaged dimensions last, and the others in their order.
  std::vector<int64_t> order;
  for (const bool reduced : {false, true}) {
    for (const auto d : c10::irange(q.dim())) {
      if (shape.reduced[d] == reduced) order.push_back(d);
    }
  }
  const at::Tensor rows = q.permute(order).contiguous();
  const at::Tensor means = at::empty(sizes, q.options());
  mean_rows(rows.const_data_ptr<uint8_t>(), means.numel(), count, grids, multiplier,
            means.mutable_data_ptr<uint8_t>());
  if (shape.format == at::MemoryFormat::Contiguous) return means;
  return out.copy_(means);
}

}  // namespace
}  // namespace horizon::ops

TORCH_LIBRARY_IMPL(horizon, CPU, m) {
  m.impl("quantized_avg_pool2d", TORCH_FN(horizon::ops::quantized_avg_pool2d_cpu));
  m.impl("quantized_adaptive_avg_pool2d",
         TORCH_FN(horizon::ops::quantized_adaptive_avg_pool2d_cpu));
  m.impl("quantized_mean", TORCH_FN(horizon::ops::quantized_mean_cpu));
}
