#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <vector>

#include "ops/cuda/kernels/quantized_mean.h"
#include "ops/cuda/kernels/quantized_pool.h"
#include "ops/cuda/quantized_maps.h"
#include "ops/integer_checks.h"
#include "ops/quantized_max_pool.h"
#include "ops/quantized_pool.h"

// The integer poolings and the mean, as templates of a runner (quantized_maps.h).
namespace horizon::ops::cuda {

struct PoolGrids {
  DeviceGrid x, y;
};

/// The images of `q` in `format`, pooled to `rows` x `columns`.
inline PooledImages pooled_images(const at::Tensor& q, at::MemoryFormat format, int64_t rows,
                                  int64_t columns) {
  const int64_t height = q.size(-2);
  const int64_t width = q.size(-1);
  const int64_t channels = format == at::MemoryFormat::ChannelsLast ? q.size(1) : 1;
  return {q.numel() / (height * width * channels), height, width, channels, rows, columns};
}

template <typename Runner>
void mean_of_rows(const Runner& runner, const at::Tensor& rows, int64_t count,
                  const PoolGrids& grids, const at::Tensor& out) {
  const MeanOfRows body{grids.x,
                        grids.y,
                        out.numel(),
                        count,
                        MeanOfRows::lanes_for(count),
                        rows.const_data_ptr<uint8_t>(),
                        out.mutable_data_ptr<uint8_t>()};
  runner(body.grid(), body);
}

template <typename Runner, typename Axis>
void average_windows(const Runner& runner, const at::Tensor& image, const PooledImages& shape,
                     const Axis& y_axis, const Axis& x_axis, const PoolDivisor& divisor,
                     const PoolGrids& grids, const at::Tensor& out) {
  const AveragePool<Axis> body{grids.x,
                               grids.y,
                               shape,
                               y_axis,
                               x_axis,
                               divisor,
                               image.const_data_ptr<uint8_t>(),
                               out.mutable_data_ptr<uint8_t>()};
  runner(body.grid(), body);
}

template <typename Axis>
bool covers_image(const Axis& axis) {
  if (axis.count != 1) return false;
  const PoolRange range = axis(0);
  return range.begin == 0 && range.end == axis.size && range.padded == axis.size;
}

template <typename Runner, typename Axis>
at::Tensor average_pool(const Runner& runner, const at::Tensor& q, const QuantizedPoolShape& shape,
                        const Axis& y_axis, const Axis& x_axis, const PoolDivisor& divisor,
                        const PoolGrids& grids) {
  const at::Tensor out = at::empty(concrete(shape.sizes), q.options(), shape.format);
  if (out.numel() == 0) return out;
  const at::Tensor image = q.contiguous(shape.format);
  const PooledImages images = pooled_images(q, shape.format, y_axis.count, x_axis.count);
  const bool planes = images.channels == 1 && divisor.fixed == 0;
  if (planes && covers_image(y_axis) && covers_image(x_axis)) {
    mean_of_rows(runner, image, images.height * images.width, grids, out);
  } else {
    average_windows(runner, image, images, y_axis, x_axis, divisor, grids, out);
  }
  return out;
}

template <typename Runner>
at::Tensor quantized_avg_pool2d(const Runner& runner, const at::Tensor& q,
                                const at::Tensor& q_scale, const at::Tensor& q_zero_point,
                                at::IntArrayRef kernel_size, at::IntArrayRef stride,
                                at::IntArrayRef padding, bool ceil_mode, bool count_include_pad,
                                std::optional<int64_t> divisor_override, const at::Tensor& scale,
                                const at::Tensor& zero_point) {
  const auto shape =
      check_quantized_avg_pool2d(q, q_scale, q_zero_point, kernel_size, stride, padding, ceil_mode,
                                 divisor_override, scale, zero_point);
  const auto sizes = concrete(shape.sizes);
  const auto axis = [&](int i) {
    return PoolingAxis{q.size(i - 2), sizes[sizes.size() - 2 + i], shape.kernel[i], shape.stride[i],
                       shape.padding[i]};
  };
  return average_pool(runner, q, shape, axis(0), axis(1),
                      PoolDivisor{divisor_override.value_or(0), count_include_pad},
                      {device_grid(q_scale, q_zero_point), device_grid(scale, zero_point)});
}

template <typename Runner>
at::Tensor quantized_adaptive_avg_pool2d(const Runner& runner, const at::Tensor& q,
                                         const at::Tensor& q_scale, const at::Tensor& q_zero_point,
                                         at::IntArrayRef output_size, const at::Tensor& scale,
                                         const at::Tensor& zero_point) {
  const auto shape =
      check_quantized_adaptive_avg_pool2d(q, q_scale, q_zero_point, output_size, scale, zero_point);
  return average_pool(runner, q, shape, AdaptiveAxis{q.size(-2), output_size[0]},
                      AdaptiveAxis{q.size(-1), output_size[1]}, PoolDivisor{0, true},
                      {device_grid(q_scale, q_zero_point), device_grid(scale, zero_point)});
}

template <typename Runner>
at::Tensor quantized_mean(const Runner& runner, const at::Tensor& q, const at::Tensor& q_scale,
                          const at::Tensor& q_zero_point, at::IntArrayRef dim, bool keepdim,
                          const at::Tensor& scale, const at::Tensor& zero_point) {
  const auto shape =
      check_quantized_mean(q, q_scale, q_zero_point, dim, keepdim, scale, zero_point);
  const PoolGrids grids{device_grid(q_scale, q_zero_point), device_grid(scale, zero_point)};
  const auto sizes = concrete(shape.sizes);
  const at::Tensor out = at::empty(sizes, q.options(), shape.format);
  if (out.numel() == 0) return out;
  const bool over_pixels = q.dim() == 4 && !shape.reduced[0] && !shape.reduced[1] &&
                           shape.reduced[2] && shape.reduced[3];
  if (over_pixels && result_format(q) == at::MemoryFormat::ChannelsLast) {
    const at::Tensor image = q.contiguous(at::MemoryFormat::ChannelsLast);
    average_windows(runner, image, pooled_images(q, at::MemoryFormat::ChannelsLast, 1, 1),
                    AdaptiveAxis{q.size(2), 1}, AdaptiveAxis{q.size(3), 1}, PoolDivisor{0, true},
                    grids, out);
    return out;
  }
  // The averaged dimensions last, and the others in their order.
  std::vector<int64_t> order;
  for (const bool reduced : {false, true}) {
    for (int64_t d = 0; d < q.dim(); ++d) {
      if (shape.reduced[d] == reduced) order.push_back(d);
    }
  }
  const at::Tensor rows = q.permute(order).contiguous();
  const at::Tensor means = at::empty(sizes, q.options());
  mean_of_rows(runner, rows, shape.count.guard_int(__FILE__, __LINE__), grids, means);
  return shape.format == at::MemoryFormat::Contiguous ? means : out.copy_(means);
}

template <typename Runner>
at::Tensor quantized_max_pool2d(const Runner& runner, const at::Tensor& q,
                                at::IntArrayRef kernel_size, at::IntArrayRef stride,
                                at::IntArrayRef padding, at::IntArrayRef dilation, bool ceil_mode) {
  const auto shape =
      check_quantized_max_pool2d(q, kernel_size, stride, padding, dilation, ceil_mode);
  const auto sizes = concrete(shape.sizes);
  const at::Tensor out = at::empty(sizes, q.options(), shape.format);
  if (out.numel() == 0) return out;
  const at::Tensor image = q.contiguous(shape.format);
  const auto axis = [&](int i) {
    return MaxPoolAxis{q.size(i - 2),    sizes[sizes.size() - 2 + i],
                       shape.kernel[i],  shape.stride[i],
                       shape.padding[i], shape.dilation[i]};
  };
  const MaxPool body{pooled_images(q, shape.format, axis(0).count, axis(1).count), axis(0), axis(1),
                     image.const_data_ptr<uint8_t>(), out.mutable_data_ptr<uint8_t>()};
  runner(body.grid(), body);
  return out;
}

}  // namespace horizon::ops::cuda
