#include "ops/quantized_pool.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <c10/util/irange.h>
#include <torch/library.h>

#include <algorithm>
#include <vector>

#include "ops/cpu/kernels/average_pool.h"
#include "ops/cpu/pool_layout.h"
#include "ops/integer_checks.h"
#include "ops/pool_windows.h"

namespace horizon::ops {
namespace {

constexpr int64_t kGrain = 1 << 15;
constexpr PoolDivisor kWindowSize{0, true};

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

/// The code of a centred sum too large for int32.
uint8_t average_code(int64_t centred_sum, float multiplier, const cpu::OutputStage& stage) {
  return quant::to_code(static_cast<float>(centred_sum) * multiplier, stage.zero_point);
}

/// A row with windows of more than kMaxWindow pixels, perhaps.
void average_large(const cpu::AverageRow& row, const std::vector<PoolRange>& columns,
                   uint8_t* output) {
  for (const auto x : c10::irange(row.windows)) {
    for (const auto c : c10::irange(row.channels)) {
      int64_t sum = 0;
      for (const auto y : c10::irange(row.height)) {
        const uint8_t* from = row.from + y * row.size * row.channels + c;
        for (const auto i : c10::irange(columns[x].begin, columns[x].end)) {
          sum += from[i * row.channels] - row.zero_point;
        }
      }
      output[x * row.channels + c] = average_code(sum, row.multiplier[x], row.stage);
    }
  }
}

/// The windows along one axis.
struct Windows {
  std::vector<PoolRange> ranges;
  std::vector<cpu::WindowRun> runs;

  template <typename Axis>
  explicit Windows(const Axis& axis) {
    for (const auto i : c10::irange(axis.count)) {
      ranges.push_back(axis(i));
      const int64_t size = ranges[i].end - ranges[i].begin;
      if (i > 0) {
        cpu::WindowRun& run = runs.back();
        const int64_t stride = ranges[i].begin - ranges[i - 1].begin;
        if (run.windows == 1) run.stride = stride;
        if (run.size == size && run.stride == stride) {
          ++run.windows;
          continue;
        }
      }
      runs.push_back({1, ranges[i].begin, size, 1});
    }
  }

  bool is_like_previous(int64_t i) const {
    const PoolRange& a = ranges[i];
    const PoolRange& b = ranges[i - 1];
    return a.padded == b.padded && a.end - a.begin == b.end - b.begin;
  }
};

/// The multiplier of each window, [rows][columns]; `divisor` gives its count from its ranges.
template <typename Divisor>
std::vector<float> multipliers(const Windows& rows, const Windows& columns, const Grids& grids,
                               const Divisor& divisor) {
  const auto width = static_cast<int64_t>(columns.ranges.size());
  std::vector<float> out;
  for (const auto y : c10::irange(static_cast<int64_t>(rows.ranges.size()))) {
    for (const auto x : c10::irange(width)) {
      const auto i = y * width + x;
      if (y > 0 && rows.is_like_previous(y)) {
        out.push_back(out[i - width]);
      } else if (x > 0 && columns.is_like_previous(x)) {
        out.push_back(out[i - 1]);
      } else {
        out.push_back(grids.multiplier(divisor(rows.ranges[y], columns.ranges[x])));
      }
    }
  }
  return out;
}

/// Averages windows of images [images][y_axis.size][x_axis.size][channels].
template <typename Axis, typename Divisor>
void average_windows(const uint8_t* q, int64_t images, int64_t channels, const Axis& y_axis,
                     const Axis& x_axis, const Grids& grids, const Divisor& divisor,
                     uint8_t* output) {
  if (images * channels * y_axis.count * x_axis.count == 0) return;
  const Windows rows(y_axis);
  const Windows columns(x_axis);
  const std::vector<float> multiplier = multipliers(rows, columns, grids, divisor);
  const int64_t width = x_axis.size * channels;
  const int64_t out_width = x_axis.count * channels;
  const auto average = [&](int64_t row, const cpu::AverageScratch& scratch) {
    const int64_t y = row % y_axis.count;
    const PoolRange& range = rows.ranges[y];
    cpu::AverageRow task{q + (row / y_axis.count * y_axis.size + range.begin) * width,
                         range.end - range.begin,
                         x_axis.size,
                         channels,
                         columns.runs.data(),
                         static_cast<int64_t>(columns.runs.size()),
                         multiplier.data() + y * x_axis.count,
                         x_axis.count,
                         grids.x.zero_point,
                         grids.stage()};
    uint8_t* to = output + row * out_width;
    if (task.height * x_axis.size <= cpu::kMaxWindow) {
      cpu::average_pool_kernels().row(task, scratch, to);
    } else {
      average_large(task, columns.ranges, to);
    }
  };
  const int64_t share = width * std::max<int64_t>(1, y_axis.size / y_axis.count);
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, share));
  at::parallel_for(0, images * y_axis.count, grain, [&](int64_t begin, int64_t end) {
    std::vector<uint16_t> sums(width + 1);
    std::vector<int32_t> totals(out_width);
    std::vector<float> repeated(out_width);
    const cpu::AverageScratch scratch{sums.data(), totals.data(), repeated.data()};
    for (const auto row : c10::irange(begin, end)) average(row, scratch);
  });
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
        sum += cpu::average_pool_kernels().sum(q + r * count + first, part);
      }
      output[r] = average_code(sum, multiplier, stage);
    }
  });
}

template <typename Axis, typename Divisor>
at::Tensor pool_as_laid_out(const at::Tensor& q, const QuantizedPoolShape& shape,
                            const Axis& y_axis, const Axis& x_axis, const Grids& grids,
                            const Divisor& divisor) {
  const at::Tensor in = q.contiguous(shape.format);
  const at::Tensor out = at::empty(concrete(shape.sizes), q.options(), shape.format);
  if (out.numel() == 0) return out;
  // A contiguous image is one of a single channel for every plane.
  const int64_t channels = shape.format == at::MemoryFormat::ChannelsLast ? q.size(1) : 1;
  const int64_t images = out.numel() / (channels * y_axis.count * x_axis.count);
  average_windows(in.const_data_ptr<uint8_t>(), images, channels, y_axis, x_axis, grids, divisor,
                  out.mutable_data_ptr<uint8_t>());
  return out;
}

/// The mean of every plane of a contiguous image.
template <typename Axis, typename Divisor>
at::Tensor pool_planes(const at::Tensor& q, const QuantizedPoolShape& shape, const Axis& y_axis,
                       const Axis& x_axis, const Grids& grids, const Divisor& divisor) {
  const at::Tensor in = q.contiguous();
  const at::Tensor out = at::empty(concrete(shape.sizes), q.options());
  mean_rows(in.const_data_ptr<uint8_t>(), out.numel(), y_axis.size * x_axis.size, grids,
            grids.multiplier(divisor(y_axis(0), x_axis(0))), out.mutable_data_ptr<uint8_t>());
  return out;
}

template <typename Axis>
bool covers(const Axis& axis) {
  return axis.count == 1 && axis(0).begin == 0 && axis(0).end == axis.size;
}

template <typename Axis, typename Divisor>
at::Tensor pool(const at::Tensor& q, const QuantizedPoolShape& shape, const Axis& y_axis,
                const Axis& x_axis, const Grids& grids, const Divisor& divisor) {
  if (shape.format == at::MemoryFormat::Contiguous && covers(y_axis) && covers(x_axis)) {
    return pool_planes(q, shape, y_axis, x_axis, grids, divisor);
  }
  return pool_in_fast_layout(q, shape, [&](const at::Tensor& image, const auto& laid_out) {
    return pool_as_laid_out(image, laid_out, y_axis, x_axis, grids, divisor);
  });
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
  return pool(q, shape, axis(0), axis(1), grids,
              PoolDivisor{divisor_override.value_or(0), count_include_pad});
}

at::Tensor quantized_adaptive_avg_pool2d_cpu(const at::Tensor& q, const at::Tensor& q_scale,
                                             const at::Tensor& q_zero_point,
                                             at::IntArrayRef output_size, const at::Tensor& scale,
                                             const at::Tensor& zero_point) {
  const auto shape =
      check_quantized_adaptive_avg_pool2d(q, q_scale, q_zero_point, output_size, scale, zero_point);
  const Grids grids("quantized_adaptive_avg_pool2d", q_scale, q_zero_point, scale, zero_point);
  return pool(q, shape, AdaptiveAxis{q.size(-2), output_size[0]},
              AdaptiveAxis{q.size(-1), output_size[1]}, grids, kWindowSize);
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
    const at::Tensor image = q.contiguous(at::MemoryFormat::ChannelsLast);
    average_windows(image.const_data_ptr<uint8_t>(), q.size(0), q.size(1),
                    AdaptiveAxis{q.size(2), 1}, AdaptiveAxis{q.size(3), 1}, grids, kWindowSize,
                    out.mutable_data_ptr<uint8_t>());
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
