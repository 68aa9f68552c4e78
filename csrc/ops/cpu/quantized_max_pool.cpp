#include "ops/quantized_max_pool.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <c10/util/irange.h>
#include <torch/library.h>

#include <algorithm>
#include <vector>

#include "ops/cpu/kernels/max_pool.h"
#include "ops/cpu/pool_layout.h"
#include "ops/integer_checks.h"

namespace horizon::ops {
namespace {

constexpr int64_t kGrain = 1 << 15;

at::Tensor max_pool(const at::Tensor& q, const QuantizedPoolShape& shape) {
  const auto sizes = concrete(shape.sizes);
  const at::Tensor input = q.contiguous(shape.format);
  const at::Tensor out = at::empty(sizes, q.options(), shape.format);
  if (out.numel() == 0) return out;

  const auto axis = [&](int i) {
    return cpu::MaxPoolAxis{q.size(i - 2),    sizes[sizes.size() - 2 + i],
                            shape.kernel[i],  shape.stride[i],
                            shape.padding[i], shape.dilation[i]};
  };
  const cpu::MaxPoolAxis y_axis = axis(0);
  const cpu::MaxPoolAxis x_axis = axis(1);
  // A contiguous image is one of a single channel for every plane.
  const int64_t channels = shape.format == at::MemoryFormat::ChannelsLast ? q.size(1) : 1;
  const int64_t row = x_axis.size * channels;
  const int64_t out_row = x_axis.count * channels;
  const auto* from = input.const_data_ptr<uint8_t>();
  auto* to = out.mutable_data_ptr<uint8_t>();
  const auto max_row = cpu::max_pool_kernels().row;
  const int64_t share = row * std::min(y_axis.kernel, y_axis.size);
  const int64_t grain = std::max<int64_t>(1, kGrain / share);
  at::parallel_for(0, out.numel() / out_row, grain, [&](int64_t begin, int64_t end) {
    std::vector<uint8_t> scratch(2 * row);
    for (const auto i : c10::irange(begin, end)) {
      const uint8_t* plane = from + i / y_axis.count * y_axis.size * row;
      max_row(plane, y_axis, x_axis, channels, i % y_axis.count, scratch.data(), to + i * out_row);
    }
  });
  return out;
}

at::Tensor quantized_max_pool2d_cpu(const at::Tensor& q, at::IntArrayRef kernel_size,
                                    at::IntArrayRef stride, at::IntArrayRef padding,
                                    at::IntArrayRef dilation, bool ceil_mode) {
  const auto shape =
      check_quantized_max_pool2d(q, kernel_size, stride, padding, dilation, ceil_mode);
  return pool_in_fast_layout(q, shape, max_pool);
}

}  // namespace
}  // namespace horizon::ops

TORCH_LIBRARY_IMPL(horizon, CPU, m) {
  m.impl("quantized_max_pool2d", TORCH_FN(horizon::ops::quantized_max_pool2d_cpu));
}
