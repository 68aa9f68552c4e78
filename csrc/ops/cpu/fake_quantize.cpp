#include "ops/fake_quantize.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "ops/checks.h"
#include "ops/cpu/channel_grids.h"
#include "ops/cpu/dense.h"
#include "ops/cpu/kernels/fake_quantize.h"

namespace horizon::ops {
namespace {

constexpr const char* kPerTensor = "fake_quantize_per_tensor";
constexpr const char* kPerChannel = "fake_quantize_per_channel";

uint8_t* mask_data(const at::Tensor& mask) {
  return mask.defined() ? mask.mutable_data_ptr<uint8_t>() : nullptr;
}

at::Tensor per_tensor(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& zero_point,
                      int64_t quant_min, int64_t quant_max, const at::Tensor& mask) {
  const float s = read_scale(kPerTensor, "scale", scale);
  const int32_t z = read_zero_point(kPerTensor, "zero_point", zero_point, quant_min, quant_max);
  const cpu::Grid grid{s, 1.0F / s, z, static_cast<int32_t>(quant_min),
                       static_cast<int32_t>(quant_max)};
  const auto [source, y] = cpu::dense_result(x);
  const void* from = source.const_data_ptr();
  void* to = y.mutable_data_ptr();
  uint8_t* bits = mask_data(mask);
  const auto type = cpu::float_type(x.scalar_type());
  cpu::parallel_blocks(x.numel(), [&](int64_t begin, int64_t end) {
    cpu::fake_quantize_kernels().per_tensor(type, from, to, bits, begin, end, grid);
  });
  return y;
}

at::Tensor per_channel(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& zero_point,
                       int64_t axis, int64_t quant_min, int64_t quant_max, const at::Tensor& mask) {
  const at::Tensor scales = scale.to(at::kFloat).contiguous();
  const at::Tensor long_points = zero_point.to(at::kLong).contiguous();
  const int64_t channels = scales.numel();
  std::vector<int32_t> zero_points(static_cast<size_t>(channels));
  for (int64_t c = 0; c < channels; ++c) {
    check_scale_value(kPerChannel, "scale", scales.const_data_ptr<float>()[c]);
    const int64_t z = long_points.const_data_ptr<int64_t>()[c];
    check_zero_point_value(kPerChannel, "zero_point", z, quant_min, quant_max);
    zero_points[static_cast<size_t>(c)] = static_cast<int32_t>(z);
  }
  const auto [source, y] = cpu::dense_result(x);
  if (x.numel() == 0) return y;

  int64_t inner = 1;
  const std::vector<int64_t> order = memory_order(y);
  for (auto dim = order.rbegin(); *dim != axis; ++dim) inner *= y.size(*dim);
  const cpu::ChannelTable table(scales.const_data_ptr<float>(), zero_points.data(),
                                x.numel() / (channels * inner), channels, inner,
                                static_cast<int32_t>(quant_min), static_cast<int32_t>(quant_max));
  const void* from = source.const_data_ptr();
  void* to = y.mutable_data_ptr();
  uint8_t* bits = mask_data(mask);
  const auto type = cpu::float_type(x.scalar_type());
  cpu::parallel_blocks(x.numel(), [&](int64_t begin, int64_t end) {
    cpu::fake_quantize_kernels().per_channel(type, from, to, bits, begin, end, table.grids());
  });
  return y;
}

at::Tensor empty_mask(const at::Tensor& x) {
  return at::empty({(x.numel() + 7) / 8}, x.options().dtype(at::kByte));
}

at::Tensor fake_quantize_per_tensor_cpu(const at::Tensor& x, const at::Tensor& scale,
                                        const at::Tensor& zero_point, int64_t quant_min,
                                        int64_t quant_max) {
  check_per_tensor(x, scale, zero_point, quant_min, quant_max);
  return per_tensor(x, scale, zero_point, quant_min, quant_max, at::Tensor());
}

std::tuple<at::Tensor, at::Tensor> fake_quantize_per_tensor_mask_cpu(const at::Tensor& x,
                                                                     const at::Tensor& scale,
                                                                     const at::Tensor& zero_point,
                                                                     int64_t quant_min,
                                                                     int64_t quant_max) {
  check_per_tensor(x, scale, zero_point, quant_min, quant_max);
  const at::Tensor mask = empty_mask(x);
  return {per_tensor(x, scale, zero_point, quant_min, quant_max, mask), mask};
}

at::Tensor fake_quantize_per_channel_cpu(const at::Tensor& x, const at::Tensor& scale,
                                         const at::Tensor& zero_point, int64_t axis,
                                         int64_t quant_min, int64_t quant_max) {
  axis = check_per_channel(x, scale, zero_point, axis, quant_min, quant_max);
  return per_channel(x, scale, zero_point, axis, quant_min, quant_max, at::Tensor());
}

std::tuple<at::Tensor, at::Tensor> fake_quantize_per_channel_mask_cpu(
    const at::Tensor& x, const at::Tensor& scale, const at::Tensor& zero_point, int64_t axis,
    int64_t quant_min, int64_t quant_max) {
  axis = check_per_channel(x, scale, zero_point, axis, quant_min, quant_max);
  const at::Tensor mask = empty_mask(x);
  return {per_channel(x, scale, zero_point, axis, quant_min, quant_max, mask), mask};
}

at::Tensor mask_gradient_cpu(const at::Tensor& grad, const at::Tensor& mask,
                             at::IntArrayRef order) {
  check_mask_gradient(grad, mask, order);
  const at::Tensor source = grad.permute(order).contiguous();
  const at::Tensor bits = mask.contiguous();
  const at::Tensor result = at::empty(source.sizes(), source.options());
  const auto type = cpu::float_type(grad.scalar_type());
  const void* from = source.const_data_ptr();
  void* to = result.mutable_data_ptr();
  const uint8_t* keep = bits.const_data_ptr<uint8_t>();
  cpu::parallel_blocks(grad.numel(), [&](int64_t begin, int64_t end) {
    cpu::fake_quantize_kernels().mask_gradient(type, from, keep, to, begin, end);
  });
  return result.permute(inverse_order(order));
}

TORCH_LIBRARY_IMPL(horizon, CPU, m) {
  m.impl("fake_quantize_per_tensor", &fake_quantize_per_tensor_cpu);
  m.impl("fake_quantize_per_channel", &fake_quantize_per_channel_cpu);
  m.impl("_fake_quantize_per_tensor_mask", &fake_quantize_per_tensor_mask_cpu);
  m.impl("_fake_quantize_per_channel_mask", &fake_quantize_per_channel_mask_cpu);
  m.impl("_mask_gradient", &mask_gradient_cpu);
}

}  // namespace
}  // namespace horizon::ops
