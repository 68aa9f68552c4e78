#pragma once

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "ops/codes_io.h"
#include "ops/cpu/dense.h"
#include "ops/cuda/fused_tensors.h"
#include "ops/cuda/kernels/fake_quantize.h"
#include "ops/fake_quantize.h"
#include "quant/grid.h"

// Fake quantization on given grids, its gradient, and codes of single tensors: templates of a
// runner, as in quantized_maps.h. Results are those of the CPU's kernels to the bit.
namespace horizon::ops::cuda {

/// Whether fp32 arithmetic on codes of this range needs the wide formula.
inline bool is_wide(int64_t lo, int64_t hi) {
  return lo < -quant::kNarrowGrid || hi > quant::kNarrowGrid;
}

inline at::Tensor empty_mask(const at::Tensor& x) {
  return at::empty({(x.numel() + 7) / 8}, x.options().dtype(at::kByte));
}

/// x on `grids` in memory laid out as x; `mask` may be undefined.
template <typename Runner, typename Grids>
at::Tensor fake_quantize_values(const Runner& runner, const at::Tensor& x, const Grids& grids,
                                const at::Tensor& mask) {
  const auto [source, y] = cpu::dense_result(x);
  const void* from = source.const_data_ptr();
  void* to = y.mutable_data_ptr();
  with_float_type(x.scalar_type(), [&](auto zero) {
    using S = decltype(zero);
    using T = ComputeType<S>;
    const auto start = [&](auto body) {
      body.total = y.numel();
      body.grids = grids;
      body.x = static_cast<const S*>(from);
      body.y = static_cast<S*>(to);
      if (mask.defined()) body.mask = mask.template mutable_data_ptr<uint8_t>();
      runner(body.grid(), body);
    };
    if constexpr (std::is_same_v<T, float>) {
      if (is_wide(grids.lo, grids.hi)) return start(FakeQuantize<S, T, Grids, true>{});
    }
    start(FakeQuantize<S, T, Grids, false>{});
  });
  return y;
}

/// A scale and a zero point as the bodies read them.
struct GridTensors {
  at::Tensor scale, zero_point;

  GridTensors(const at::Tensor& s, const at::Tensor& z)
      : scale(s.to(at::kFloat).contiguous()), zero_point(z.to(at::kInt).contiguous()) {}

  TensorGrid grid(int64_t lo, int64_t hi) const {
    return {scale.const_data_ptr<float>(), zero_point.const_data_ptr<int32_t>(),
            static_cast<int32_t>(lo), static_cast<int32_t>(hi)};
  }
};

template <typename Runner>
at::Tensor fake_quantize_tensor(const Runner& runner, const at::Tensor& x, const at::Tensor& scale,
                                const at::Tensor& zero_point, int64_t quant_min, int64_t quant_max,
                                const at::Tensor& mask) {
  const GridTensors tensors(scale, zero_point);
  return fake_quantize_values(runner, x, tensors.grid(quant_min, quant_max), mask);
}

template <typename Runner>
at::Tensor fake_quantize_channels(const Runner& runner, const at::Tensor& x,
                                  const at::Tensor& scale, const at::Tensor& zero_point,
                                  int64_t axis, int64_t quant_min, int64_t quant_max,
                                  const at::Tensor& mask) {
  const GridTensors tensors(scale, zero_point);
  if (x.numel() == 0) return at::empty_like(x, at::MemoryFormat::Preserve);
  const at::Tensor like = at::empty_like(x, x.options().device(at::kMeta));
  int64_t inner = 1;
  const std::vector<int64_t> order = memory_order(like);
  for (auto dim = order.rbegin(); *dim != axis; ++dim) inner *= x.size(*dim);
  const int64_t channels = x.size(axis);
  const ChannelGrids grids{tensors.scale.template const_data_ptr<float>(),
                           tensors.zero_point.template const_data_ptr<int32_t>(),
                           static_cast<int32_t>(quant_min),
                           static_cast<int32_t>(quant_max),
                           x.numel() / (channels * inner),
                           channels,
                           inner};
  return fake_quantize_values(runner, x, grids, mask);
}

template <typename Runner>
at::Tensor fake_quantize_per_tensor(const Runner& runner, const at::Tensor& x,
                                    const at::Tensor& scale, const at::Tensor& zero_point,
                                    int64_t quant_min, int64_t quant_max) {
  check_per_tensor(x, scale, zero_point, quant_min, quant_max);
  return fake_quantize_tensor(runner, x, scale, zero_point, quant_min, quant_max, at::Tensor());
}

template <typename Runner>
std::tuple<at::Tensor, at::Tensor> fake_quantize_per_tensor_mask(
    const Runner& runner, const at::Tensor& x, const at::Tensor& scale,
    const at::Tensor& zero_point, int64_t quant_min, int64_t quant_max) {
  check_per_tensor(x, scale, zero_point, quant_min, quant_max);
  const at::Tensor mask = empty_mask(x);
  return {fake_quantize_tensor(runner, x, scale, zero_point, quant_min, quant_max, mask), mask};
}

template <typename Runner>
at::Tensor fake_quantize_per_channel(const Runner& runner, const at::Tensor& x,
                                     const at::Tensor& scale, const at::Tensor& zero_point,
                                     int64_t axis, int64_t quant_min, int64_t quant_max) {
  axis = check_per_channel(x, scale, zero_point, axis, quant_min, quant_max);
  return fake_quantize_channels(runner, x, scale, zero_point, axis, quant_min, quant_max,
                                at::Tensor());
}

template <typename Runner>
std::tuple<at::Tensor, at::Tensor> fake_quantize_per_channel_mask(
    const Runner& runner, const at::Tensor& x, const at::Tensor& scale,
    const at::Tensor& zero_point, int64_t axis, int64_t quant_min, int64_t quant_max) {
  axis = check_per_channel(x, scale, zero_point, axis, quant_min, quant_max);
  const at::Tensor mask = empty_mask(x);
  return {fake_quantize_channels(runner, x, scale, zero_point, axis, quant_min, quant_max, mask),
          mask};
}

template <typename Runner>
at::Tensor mask_gradient(const Runner& runner, const at::Tensor& grad, const at::Tensor& mask,
                         at::IntArrayRef order) {
  check_mask_gradient(grad, mask, order);
  const at::Tensor source = grad.permute(order).contiguous();
  const at::Tensor bits = mask.contiguous();
  const at::Tensor result = at::empty(source.sizes(), source.options());
  const auto start = [&](auto zero) {
    using Bits = decltype(zero);
    MaskGradient<Bits> body;
    body.total = source.numel();
    body.grad = static_cast<const Bits*>(source.const_data_ptr());
    body.mask = bits.template const_data_ptr<uint8_t>();
    body.out = static_cast<Bits*>(result.mutable_data_ptr());
    runner(body.grid(), body);
  };
  switch (grad.element_size()) {
    case 2:
      start(uint16_t{});
      break;
    case 4:
      start(uint32_t{});
      break;
    default:
      start(uint64_t{});
  }
  return result.permute(inverse_order(order));
}

template <typename Runner>
at::Tensor quantize(const Runner& runner, const at::Tensor& x, const at::Tensor& scale,
                    const at::Tensor& zero_point) {
  check_quantize(x, scale, zero_point);
  const GridTensors tensors(scale, zero_point);
  const at::Tensor source = cpu::dense_input(x);
  at::Tensor codes =
      at::empty_like(source, source.options().dtype(at::kByte), at::MemoryFormat::Preserve);
  with_float_type(x.scalar_type(), [&](auto zero) {
    using S = decltype(zero);
    EncodeValues<S, ComputeType<S>, TensorGrid, uint8_t> body;
    body.total = x.numel();
    body.grids = tensors.grid(quant::kStoredMin, quant::kStoredMax);
    body.x = source.template const_data_ptr<S>();
    body.codes = codes.template mutable_data_ptr<uint8_t>();
    runner(body.grid(), body);
  });
  return codes;
}

template <typename Runner>
at::Tensor dequantize(const Runner& runner, const at::Tensor& q, const at::Tensor& scale,
                      const at::Tensor& zero_point, std::optional<at::ScalarType> dtype) {
  const at::ScalarType type = check_dequantize(q, scale, zero_point, dtype);
  const GridTensors tensors(scale, zero_point);
  const at::Tensor source = cpu::dense_input(q);
  at::Tensor y = at::empty_like(source, source.options().dtype(type), at::MemoryFormat::Preserve);
  with_float_type(type, [&](auto zero) {
    using S = decltype(zero);
    DecodeCodes<S, ComputeType<S>> body;
    body.total = q.numel();
    body.grids = tensors.grid(quant::kStoredMin, quant::kStoredMax);
    body.codes = source.template const_data_ptr<uint8_t>();
    body.y = y.template mutable_data_ptr<S>();
    runner(body.grid(), body);
  });
  return y;
}

}  // namespace horizon::ops::cuda
