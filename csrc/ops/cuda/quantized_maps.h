#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>

#include "ops/cuda/kernels/quantized_binary.h"
#include "ops/cuda/kernels/quantized_map.h"
#include "ops/integer_checks.h"
#include "ops/quantized_affine.h"
#include "ops/quantized_binary.h"
#include "ops/quantized_cat.h"
#include "ops/quantized_lookup.h"

// The elementwise integer ops: their checks, memory and bodies. Templates of a runner, which runs
// bodies, `runner(grid, body)`: on the device, or in tests on the host. Results are those of the
// CPU's kernels to the bit.
namespace horizon::ops::cuda {

/// The grid of checked tensors.
inline DeviceGrid device_grid(const at::Tensor& scale, const at::Tensor& zero_point) {
  return {scale.const_data_ptr<float>(), zero_point.const_data_ptr<int32_t>()};
}

template <typename Runner, typename Operation>
at::Tensor combine_codes(const Runner& runner, const QuantizedBinaryShape& shape,
                         const at::Tensor& a, const at::Tensor& b, const BinaryGrids& grids,
                         const Operation& operation, int64_t activation) {
  const auto sizes = concrete(shape.sizes);
  const at::Tensor out = at::empty(sizes, a.options(), shape.format);
  // Broadcast operands are written out: the body walks memory in step.
  const at::Tensor x = a.expand(sizes).contiguous(shape.format);
  const at::Tensor y = b.expand(sizes).contiguous(shape.format);
  const CombineCodes<Operation> body{grids,
                                     operation,
                                     static_cast<quant::Activation>(activation),
                                     x.const_data_ptr<uint8_t>(),
                                     y.const_data_ptr<uint8_t>(),
                                     out.mutable_data_ptr<uint8_t>(),
                                     out.numel()};
  runner(body.grid(), body);
  return out;
}

template <typename Runner>
at::Tensor quantized_add(const Runner& runner, const at::Tensor& a, const at::Tensor& a_scale,
                         const at::Tensor& a_zero_point, const at::Tensor& b,
                         const at::Tensor& b_scale, const at::Tensor& b_zero_point,
                         const at::Tensor& scale, const at::Tensor& zero_point, int64_t activation,
                         double alpha) {
  const auto shape = check_quantized_binary("quantized_add", a, a_scale, a_zero_point, b, b_scale,
                                            b_zero_point, scale, zero_point, activation, alpha);
  const BinaryGrids grids{device_grid(a_scale, a_zero_point), device_grid(b_scale, b_zero_point),
                          device_grid(scale, zero_point)};
  return combine_codes(runner, shape, a, b, grids, SumOfCodes{alpha}, activation);
}

template <typename Runner>
at::Tensor quantized_mul(const Runner& runner, const at::Tensor& a, const at::Tensor& a_scale,
                         const at::Tensor& a_zero_point, const at::Tensor& b,
                         const at::Tensor& b_scale, const at::Tensor& b_zero_point,
                         const at::Tensor& scale, const at::Tensor& zero_point,
                         int64_t activation) {
  const auto shape = check_quantized_binary("quantized_mul", a, a_scale, a_zero_point, b, b_scale,
                                            b_zero_point, scale, zero_point, activation, 1.0);
  const BinaryGrids grids{device_grid(a_scale, a_zero_point), device_grid(b_scale, b_zero_point),
                          device_grid(scale, zero_point)};
  return combine_codes(runner, shape, a, b, grids, ProductOfCodes{}, activation);
}

template <typename Runner, typename Entry>
void map_all(const Runner& runner, const Entry& entry, const at::Tensor& from,
             const at::Tensor& to) {
  const int64_t count = to.numel();
  if (count == 0) return;
  const MapCodes<Entry> body{
      entry, from.const_data_ptr<uint8_t>(), to.mutable_data_ptr<uint8_t>(), 1, count, count};
  runner(body.grid(), body);
}

template <typename Runner>
at::Tensor quantized_affine(const Runner& runner, const at::Tensor& q, const at::Tensor& q_scale,
                            const at::Tensor& q_zero_point, const at::Tensor& factor,
                            const at::Tensor& offset, const at::Tensor& scale,
                            const at::Tensor& zero_point, int64_t activation) {
  check_quantized_affine(q, q_scale, q_zero_point, factor, offset, scale, zero_point, activation);
  const at::MemoryFormat format = result_format(q);
  const at::Tensor out = at::empty(q.sizes(), q.options(), format);
  if (q.numel() == 0) return out;
  const at::Tensor in = q.contiguous(format);
  const at::Tensor a = factor.contiguous();
  const at::Tensor b = offset.contiguous();
  const DeviceGrid x = device_grid(q_scale, q_zero_point);
  const DeviceGrid y = device_grid(scale, zero_point);
  const auto act = static_cast<quant::Activation>(activation);
  if (a.numel() == 1 && b.numel() == 1) {
    map_all(runner,
            DeviceAffineEntry{x, y, a.const_data_ptr<double>(), b.const_data_ptr<double>(), act},
            in, out);
    return out;
  }
  const int64_t channels = q.size(1);
  const at::Tensor constants = at::empty({2, channels}, q.options().dtype(at::kFloat));
  auto* multipliers = constants.mutable_data_ptr<float>();
  auto* offsets = multipliers + channels;
  const AffineConstants prepare{x,
                                y,
                                a.const_data_ptr<double>(),
                                b.const_data_ptr<double>(),
                                a.numel() == 1,
                                b.numel() == 1,
                                channels,
                                multipliers,
                                offsets};
  runner(prepare.grid(), prepare);
  const bool last = format != at::MemoryFormat::Contiguous;
  const AffineChannels body{x,
                            y,
                            act,
                            multipliers,
                            offsets,
                            channels,
                            last ? 1 : q.numel() / q.size(0) / channels,
                            in.const_data_ptr<uint8_t>(),
                            out.mutable_data_ptr<uint8_t>(),
                            q.numel()};
  runner(body.grid(), body);
  return out;
}

template <typename Runner>
at::Tensor quantized_affine_scalar(const Runner& runner, const at::Tensor& q,
                                   const at::Tensor& q_scale, const at::Tensor& q_zero_point,
                                   double factor, double offset, const at::Tensor& scale,
                                   const at::Tensor& zero_point, int64_t activation) {
  check_quantized_affine_scalar(q, q_scale, q_zero_point, scale, zero_point, activation);
  const at::MemoryFormat format = result_format(q);
  const at::Tensor out = at::empty(q.sizes(), q.options(), format);
  const AffineEntry entry{device_grid(q_scale, q_zero_point), device_grid(scale, zero_point),
                          factor, offset, static_cast<quant::Activation>(activation)};
  map_all(runner, entry, q.contiguous(format), out);
  return out;
}

template <typename Runner>
at::Tensor quantized_lookup(const Runner& runner, const at::Tensor& q, const at::Tensor& table) {
  check_quantized_lookup(q, table);
  const at::Tensor entries = table.contiguous();
  at::Tensor out = at::empty_like(q, at::MemoryFormat::Preserve);
  const bool dense = q.is_non_overlapping_and_dense();
  if (!dense) out.copy_(q);
  map_all(runner, GivenEntry{entries.const_data_ptr<uint8_t>()}, dense ? q : out, out);
  return out;
}

template <typename Runner>
at::Tensor quantized_cat(const Runner& runner, at::TensorList q, at::TensorList scales,
                         at::TensorList zero_points, int64_t dim, const at::Tensor& scale,
                         const at::Tensor& zero_point) {
  const auto shape = check_quantized_cat(q, scales, zero_points, dim, scale, zero_point);
  const auto sizes = concrete(shape.sizes);
  const at::Tensor out = at::empty(sizes, q[0].options(), shape.format);
  if (out.numel() == 0) return out;
  const ConcatRows order(sizes, shape.dim, shape.format);
  const int64_t stride = sizes[shape.dim] * order.inner;
  auto* to = out.mutable_data_ptr<uint8_t>();
  for (size_t i = 0; i < q.size(); ++i) {
    if (q[i].numel() == 0) continue;
    const at::Tensor codes = q[i].contiguous(shape.format);
    const int64_t width = q[i].size(shape.dim) * order.inner;
    const MapCodes<RequantizedEntry> body{
        {device_grid(scales[i], zero_points[i]), device_grid(scale, zero_point)},
        codes.const_data_ptr<uint8_t>(),
        to,
        order.outer,
        width,
        stride};
    runner(body.grid(), body);
    to += width;
  }
  return out;
}

}  // namespace horizon::ops::cuda
