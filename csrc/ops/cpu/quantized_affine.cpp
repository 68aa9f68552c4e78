#include "ops/quantized_affine.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <c10/util/irange.h>
#include <torch/library.h>

#include <algorithm>
#include <string>
#include <vector>

#include "ops/cpu/kernels/codes.h"
#include "ops/integer_checks.h"

namespace horizon::ops {
namespace {

constexpr const char* kOp = "quantized_affine";
constexpr int64_t kGrain = 1 << 15;

struct Constants {
  std::vector<float> multiplier, offset;
};

/// One entry, or one for each channel where either of the vectors has so many.
Constants read_constants(const at::Tensor& factor, const at::Tensor& offset, const CodeGrid& x,
                         const CodeGrid& y) {
  const at::Tensor a = factor.contiguous();
  const at::Tensor b = offset.contiguous();
  const auto* a_values = a.const_data_ptr<double>();
  const auto* b_values = b.const_data_ptr<double>();
  const bool empty = a.numel() == 0 || b.numel() == 0;
  const int64_t count = empty ? 0 : std::max(a.numel(), b.numel());
  Constants out;
  for (const auto c : c10::irange(count)) {
    const double a_c = a_values[a.numel() == 1 ? 0 : c];
    const double b_c = b_values[b.numel() == 1 ? 0 : c];
    const std::string channel = count == 1 ? "" : " of channel " + std::to_string(c);
    out.multiplier.push_back(check_constant(kOp, ("the multiplier" + channel).c_str(),
                                            quant::product_multiplier(x.scale, a_c, y.scale)));
    out.offset.push_back(check_constant(kOp, ("the offset" + channel).c_str(),
                                        quant::requantize_offset(b_c, y.scale)));
  }
  return out;
}

struct Problem {
  const uint8_t* input;
  uint8_t* output;
  int32_t zero_point;
  const Constants& constants;
  cpu::OutputStage stage;
};

void one_map(const Problem& p, int64_t count) {
  at::parallel_for(0, count, kGrain, [&](int64_t begin, int64_t end) {
    cpu::codes_kernels().affine(p.input + begin, end - begin, p.zero_point,
                                p.constants.multiplier[0], p.constants.offset[0], p.stage,
                                p.output + begin);
  });
}

/// Memory [rows][channels].
void map_per_column(const Problem& p, int64_t rows, int64_t channels) {
  at::parallel_for(
      0, rows, std::max<int64_t>(1, kGrain / channels), [&](int64_t begin, int64_t end) {
        cpu::codes_kernels().affine_columns(p.input + begin * channels, end - begin, channels,
                                            p.zero_point, p.constants.multiplier.data(),
                                            p.constants.offset.data(), p.stage,
                                            p.output + begin * channels);
      });
}

/// Memory [batch][channels][inner].
void map_per_plane(const Problem& p, int64_t batch, int64_t channels, int64_t inner) {
  const int64_t grain = std::max<int64_t>(1, kGrain / inner);
  at::parallel_for(0, batch * channels, grain, [&](int64_t begin, int64_t end) {
    for (const auto plane : c10::irange(begin, end)) {
      const int64_t c = plane % channels;
      cpu::codes_kernels().affine(p.input + plane * inner, inner, p.zero_point,
                                  p.constants.multiplier[c], p.constants.offset[c], p.stage,
                                  p.output + plane * inner);
    }
  });
}

at::Tensor quantized_affine_cpu(const at::Tensor& q, const at::Tensor& q_scale,
                                const at::Tensor& q_zero_point, const at::Tensor& factor,
                                const at::Tensor& offset, const at::Tensor& scale,
                                const at::Tensor& zero_point, int64_t activation) {
  check_quantized_affine(q, q_scale, q_zero_point, factor, offset, scale, zero_point, activation);
  const CodeGrid x = read_grid(kOp, "q_scale", q_scale, "q_zero_point", q_zero_point);
  const CodeGrid y = read_grid(kOp, "scale", scale, "zero_point", zero_point);
  const Constants constants = read_constants(factor, offset, x, y);
  const at::MemoryFormat format = result_format(q);
  const at::Tensor out = at::empty(q.sizes(), q.options(), format);
  if (q.numel() == 0) return out;
  const at::Tensor in = q.contiguous(format);
  const Problem problem{in.const_data_ptr<uint8_t>(),
                        out.mutable_data_ptr<uint8_t>(),
                        x.zero_point,
                        constants,
                        {static_cast<quant::Activation>(activation), quant::six_on_grid(y.scale),
                         static_cast<float>(y.zero_point)}};
  if (constants.multiplier.size() == 1) {
    one_map(problem, q.numel());
    return out;
  }
  const int64_t channels = q.size(1);
  const int64_t inner = q.numel() / q.size(0) / channels;
  if (inner == 1 || format != at::MemoryFormat::Contiguous) {
    map_per_column(problem, q.numel() / channels, channels);
  } else {
    map_per_plane(problem, q.size(0), channels, inner);
  }
  return out;
}

}  // namespace
}  // namespace horizon::ops

TORCH_LIBRARY_IMPL(horizon, CPU, m) {
  m.impl("quantized_affine", TORCH_FN(horizon::ops::quantized_affine_cpu));
}
