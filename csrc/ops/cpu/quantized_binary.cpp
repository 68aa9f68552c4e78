#include "ops/quantized_binary.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "ops/cpu/kernels/elementwise.h"
#include "ops/integer_checks.h"

namespace horizon::ops {
namespace {

using BinaryKernel = decltype(cpu::ElementwiseKernels::add);

constexpr int64_t kGrain = 1 << 15;

struct Grids {
  CodeGrid a, b, y;
};

/// The kernel over all entries; `operation` holds its constants.
at::Tensor apply(BinaryKernel kernel, const cpu::BinaryCodes& operation,
                 const QuantizedBinaryShape& shape, const at::Tensor& a, const at::Tensor& b) {
  const auto sizes = concrete(shape.sizes);
  const at::Tensor out = at::empty(sizes, a.options(), shape.format);
  // Broadcast operands are written out: the kernels walk memory in step.
  const at::Tensor x = a.expand(sizes).contiguous(shape.format);
  const at::Tensor y = b.expand(sizes).contiguous(shape.format);
  const auto* from_a = x.const_data_ptr<uint8_t>();
  const auto* from_b = y.const_data_ptr<uint8_t>();
  auto* to = out.mutable_data_ptr<uint8_t>();
  at::parallel_for(0, out.numel(), kGrain, [&](int64_t begin, int64_t end) {
    kernel(operation, from_a + begin, from_b + begin, end - begin, to + begin);
  });
  return out;
}

Grids read_grids(const char* op, const at::Tensor& a_scale, const at::Tensor& a_zero_point,
                 const at::Tensor& b_scale, const at::Tensor& b_zero_point, const at::Tensor& scale,
                 const at::Tensor& zero_point) {
  return {read_grid(op, "a_scale", a_scale, "a_zero_point", a_zero_point),
          read_grid(op, "b_scale", b_scale, "b_zero_point", b_zero_point),
          read_grid(op, "scale", scale, "zero_point", zero_point)};
}

cpu::OutputStage output_stage(const CodeGrid& y, int64_t activation) {
  return {static_cast<quant::Activation>(activation), quant::six_on_grid(y.scale),
          static_cast<float>(y.zero_point)};
}

at::Tensor quantized_add_cpu(const at::Tensor& a, const at::Tensor& a_scale,
                             const at::Tensor& a_zero_point, const at::Tensor& b,
                             const at::Tensor& b_scale, const at::Tensor& b_zero_point,
                             const at::Tensor& scale, const at::Tensor& zero_point,
                             int64_t activation, double alpha) {
  constexpr const char* kOp = "quantized_add";
  const auto shape = check_quantized_binary(kOp, a, a_scale, a_zero_point, b, b_scale, b_zero_point,
                                            scale, zero_point, activation, alpha);
  const Grids g = read_grids(kOp, a_scale, a_zero_point, b_scale, b_zero_point, scale, zero_point);
  const float a_ratio = quant::scale_ratio(g.a.scale, g.y.scale);
  const float b_ratio = quant::scale_ratio(alpha * g.b.scale, g.y.scale);
  check_constant(kOp, "a's scale over the result's", a_ratio);
  check_constant(kOp, "b's scale over the result's", b_ratio);
  return apply(cpu::elementwise_kernels().add,
               {g.a.zero_point, g.b.zero_point, a_ratio, b_ratio, output_stage(g.y, activation)},
               shape, a, b);
}

at::Tensor quantized_mul_cpu(const at::Tensor& a, const at::Tensor& a_scale,
                             const at::Tensor& a_zero_point, const at::Tensor& b,
                             const at::Tensor& b_scale, const at::Tensor& b_zero_point,
                             const at::Tensor& scale, const at::Tensor& zero_point,
                             int64_t activation) {
  constexpr const char* kOp = "quantized_mul";
  const auto shape = check_quantized_binary(kOp, a, a_scale, a_zero_point, b, b_scale, b_zero_point,
                                            scale, zero_point, activation, /*alpha=*/1.0);
  const Grids g = read_grids(kOp, a_scale, a_zero_point, b_scale, b_zero_point, scale, zero_point);
  const float ratio = quant::product_multiplier(g.a.scale, g.b.scale, g.y.scale);
  check_constant(kOp, "the product of a's and b's scales over the result's", ratio);
  return apply(cpu::elementwise_kernels().multiply,
               {g.a.zero_point, g.b.zero_point, ratio, 0.0F, output_stage(g.y, activation)}, shape,
               a, b);
}

}  // namespace
}  // namespace horizon::ops

TORCH_LIBRARY_IMPL(horizon, CPU, m) {
  m.impl("quantized_add", TORCH_FN(horizon::ops::quantized_add_cpu));
  m.impl("quantized_mul", TORCH_FN(horizon::ops::quantized_mul_cpu));
}
