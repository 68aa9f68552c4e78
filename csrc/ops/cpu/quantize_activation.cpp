#include "ops/quantize_activation.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "ops/checks.h"
#include "ops/cpu/dense.h"
#include "ops/cpu/extremes.h"
#include "ops/cpu/kernels/fake_quantize.h"

namespace horizon::ops {
namespace {

constexpr const char* kOp = "quantize_activation";

// Two passes over x: extremes, then values and mask. One without observing.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> run(const at::Tensor& x,
                                                               const QuantizerArgs& q,
                                                               bool with_mask) {
  check_float(kOp, "x", x);
  check_quantizer(kOp, q, x);
  const bool observes = q.observes() && x.numel() > 0;
  at::Tensor mask = at::empty({with_mask && q.quantizes() ? (x.numel() + 7) / 8 : 0},
                              x.options().dtype(at::kByte));
  if (!q.quantizes()) {
    if (observes) {
      const auto [lo, hi] = cpu::extremes(x);
      observe_range(q, lo, hi);
    }
    auto [scale, zero_point] = empty_qparams(x);
    return {x.clone(at::MemoryFormat::Preserve), scale, zero_point, mask};
  }
  const auto [source, y] = cpu::dense_result(x);
  if (observes) {
    const auto [lo, hi] = cpu::extremes(source);
    observe_range(q, lo, hi);
  }
  const GridValues values = read_grid(kOp, q);
  const cpu::Grid grid{values.scale, 1.0F / values.scale, values.zero_point, values.quant_min,
                       values.quant_max};
  const void* from = source.const_data_ptr();
  void* to = y.mutable_data_ptr();
  uint8_t* bits = with_mask ? mask.mutable_data_ptr<uint8_t>() : nullptr;
  const auto type = cpu::float_type(x.scalar_type());
  cpu::parallel_blocks(x.numel(), [&](int64_t begin, int64_t end) {
    cpu::fake_quantize_kernels().per_tensor(type, from, to, bits, begin, end, grid);
  });
  auto [scale, zero_point] = returned_qparams(values);
  return {y, scale, zero_point, mask};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> quantize_activation_cpu(
    const at::Tensor& x, const std::optional<at::Tensor>& min_val,
    const std::optional<at::Tensor>& max_val, const std::optional<at::Tensor>& observed,
    const std::optional<at::Tensor>& scale, const std::optional<at::Tensor>& zero_point,
    int64_t preset, int64_t observer, double averaging_constant, bool observe, bool fake_quantize,
    bool skip_nonfinite) {
  auto [y, s, z, mask] = run(x,
                             {min_val, max_val, observed, scale, zero_point, preset, observer,
                              averaging_constant, observe, fake_quantize, skip_nonfinite},
                             false);
  return {y, s, z};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> quantize_activation_mask_cpu(
    const at::Tensor& x, const std::optional<at::Tensor>& min_val,
    const std::optional<at::Tensor>& max_val, const std::optional<at::Tensor>& observed,
    const std::optional<at::Tensor>& scale, const std::optional<at::Tensor>& zero_point,
    int64_t preset, int64_t observer, double averaging_constant, bool observe, bool fake_quantize,
    bool skip_nonfinite) {
  return run(x,
             {min_val, max_val, observed, scale, zero_point, preset, observer, averaging_constant,
              observe, fake_quantize, skip_nonfinite},
             true);
}

TORCH_LIBRARY_IMPL(horizon, CPU, m) {
  m.impl("quantize_activation", &quantize_activation_cpu);
  m.impl("_quantize_activation_mask", &quantize_activation_mask_cpu);
}

}  // namespace
}  // namespace horizon::ops
