#include "ops/codes_io.h"

#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <atomic>

#include "ops/checks.h"
#include "ops/cpu/dense.h"
#include "ops/cpu/kernels/fake_quantize.h"
#include "quant/grid.h"

namespace horizon::ops {
namespace {

at::Tensor quantize_cpu(const at::Tensor& x, const at::Tensor& scale,
                        const at::Tensor& zero_point) {
  check_quantize(x, scale, zero_point);
  const float s = read_scale("quantize", "scale", scale);
  const int32_t z =
      read_zero_point("quantize", "zero_point", zero_point, quant::kStoredMin, quant::kStoredMax);
  const cpu::Grid grid{s, 1.0F / s, z, quant::kStoredMin, quant::kStoredMax};
  const at::Tensor source = cpu::dense_input(x);
  at::Tensor codes =
      at::empty_like(source, source.options().dtype(at::kByte), at::MemoryFormat::Preserve);
  const void* from = source.const_data_ptr();
  auto* to = codes.mutable_data_ptr<uint8_t>();
  const auto type = cpu::float_type(x.scalar_type());
  std::atomic<bool> valid = true;
  cpu::parallel_blocks(x.numel(), [&](int64_t begin, int64_t end) {
    if (!cpu::fake_quantize_kernels().quantize(type, from, to, begin, end, grid)) valid = false;
  });
  HORIZON_CHECK_VALUE(valid, "quantize", "x", "free of NaN", "nan");
  return codes;
}

at::Tensor dequantize_cpu(const at::Tensor& q, const at::Tensor& scale,
                          const at::Tensor& zero_point, std::optional<at::ScalarType> dtype) {
  const at::ScalarType out_type = check_dequantize(q, scale, zero_point, dtype);
  const float s = read_scale("dequantize", "scale", scale);
  const int32_t z =
      read_zero_point("dequantize", "zero_point", zero_point, quant::kStoredMin, quant::kStoredMax);
  const at::Tensor source = cpu::dense_input(q);
  at::Tensor y =
      at::empty_like(source, source.options().dtype(out_type), at::MemoryFormat::Preserve);
  const auto* from = source.const_data_ptr<uint8_t>();
  void* to = y.mutable_data_ptr();
  const auto type = cpu::float_type(out_type);
  cpu::parallel_blocks(q.numel(), [&](int64_t begin, int64_t end) {
    cpu::fake_quantize_kernels().dequantize(type, from, to, begin, end, s, z);
  });
  return y;
}

TORCH_LIBRARY_IMPL(horizon, CPU, m) {
  m.impl("quantize", &quantize_cpu);
  m.impl("dequantize", &dequantize_cpu);
}

}  // namespace
}  // namespace horizon::ops
