#include "ops/quantized_affine.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <c10/util/irange.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "ops/cpu/kernels/elementwise.h"
#include "ops/integer_checks.h"

namespace horizon::ops {
namespace {

constexpr int64_t kGrain = 1 << 15;
constexpr int64_t kBlock = 64;  ///< a multiple of what kernels store at once

/// One entry, or one for each channel.
struct Constants {
  std::vector<float> multiplier, offset;

  /// Adds those of a factor and an offset; `channel` names them in errors, where it is one of many.
  void append(const char* op, double a, double b, const CodeGrid& x, const CodeGrid& y,
              int64_t channel) {
    multiplier.push_back(quant::product_multiplier(x.scale, a, y.scale));
    offset.push_back(quant::requantize_offset(b, y.scale));
    if (std::isfinite(multiplier.back()) && std::isfinite(offset.back())) return;
    const std::string where = channel < 0 ? "" : " of channel " + std::to_string(channel);
    check_constant(op, c10::str("the multiplier", where).c_str(), multiplier.back());
    check_constant(op, c10::str("the offset", where).c_str(), offset.back());
  }
};

struct Problem {
  const uint8_t* input;
  uint8_t* output;
  const Constants& constants;
  cpu::AffineMap map;  ///< that of channel 0
};

void one_map(const Problem& p, int64_t count) {
  at::parallel_for(0, count, kGrain, [&](int64_t begin, int64_t end) {
    const int64_t size = end - begin;
    cpu::elementwise_kernels().affine(p.map, p.input + begin, 1, size, size, p.output + begin,
                                      size);
  });
}

/// Memory [rows][channels].
void map_per_column(const Problem& p, int64_t rows, int64_t channels) {
  // Kernels work on blocks: few channels, or an odd number, are repeated until they fill some.
  const int64_t fill = kBlock / std::gcd(channels, kBlock);
  const int64_t repeats = rows >= 4 * fill ? fill : 1;
  Constants constants;
  for (int64_t i = 0; i < repeats; ++i) {
    for (const auto& [from, to] : {std::pair(&p.constants.multiplier, &constants.multiplier),
                                   std::pair(&p.constants.offset, &constants.offset)}) {
      to->insert(to->end(), from->begin(), from->end());
    }
  }
  const auto run = [&](int64_t begin, int64_t end, int64_t columns) {
    cpu::elementwise_kernels().affine_columns(p.map, constants.multiplier.data(),
                                              constants.offset.data(), p.input + begin * columns,
                                              end - begin, columns, p.output + begin * columns);
  };
  const int64_t width = channels * repeats;
  const int64_t grain = std::max<int64_t>(1, kGrain / width);
  at::parallel_for(0, rows / repeats, grain,
                   [&](int64_t begin, int64_t end) { run(begin, end, width); });
  run(rows / repeats * repeats, rows, channels);
}

/// Memory [batch][channels][inner].
void map_per_plane(const Problem& p, int64_t batch, int64_t channels, int64_t inner) {
  const int64_t grain = std::max<int64_t>(1, kGrain / inner);
  at::parallel_for(0, batch * channels, grain, [&](int64_t begin, int64_t end) {
    cpu::elementwise_kernels().affine_planes(
        p.map, p.constants.multiplier.data(), p.constants.offset.data(), channels,
        p.input + begin * inner, end - begin, inner, begin % channels, p.output + begin * inner);
  });
}

at::Tensor map_codes(const at::Tensor& q, const CodeGrid& x, const CodeGrid& y,
                     const Constants& constants, int64_t activation) {
  const at::MemoryFormat format = result_format(q);
  const at::Tensor out = at::empty(q.sizes(), q.options(), format);
  if (q.numel() == 0) return out;
  const at::Tensor in = q.contiguous(format);
  const cpu::OutputStage stage{static_cast<quant::Activation>(activation),
                               quant::six_on_grid(y.scale), static_cast<float>(y.zero_point)};
  const Problem problem{in.const_data_ptr<uint8_t>(),
                        out.mutable_data_ptr<uint8_t>(),
                        constants,
                        {x.zero_point, constants.multiplier[0], constants.offset[0], stage}};
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

at::Tensor quantized_affine_cpu(const at::Tensor& q, const at::Tensor& q_scale,
                                const at::Tensor& q_zero_point, const at::Tensor& factor,
                                const at::Tensor& offset, const at::Tensor& scale,
                                const at::Tensor& zero_point, int64_t activation) {
  constexpr const char* kOp = "quantized_affine";
  check_quantized_affine(q, q_scale, q_zero_point, factor, offset, scale, zero_point, activation);
  const CodeGrid x = read_grid(kOp, "q_scale", q_scale, "q_zero_point", q_zero_point);
  const CodeGrid y = read_grid(kOp, "scale", scale, "zero_point", zero_point);
  const at::Tensor a = factor.contiguous();
  const at::Tensor b = offset.contiguous();
  const auto* a_values = a.const_data_ptr<double>();
  const auto* b_values = b.const_data_ptr<double>();
  const bool empty = a.numel() == 0 || b.numel() == 0;
  const int64_t count = empty ? 0 : std::max(a.numel(), b.numel());
  Constants constants;
  for (const auto c : c10::irange(count)) {
    constants.append(kOp, a_values[a.numel() == 1 ? 0 : c], b_values[b.numel() == 1 ? 0 : c], x, y,
                     count == 1 ? -1 : c);
  }
  return map_codes(q, x, y, constants, activation);
}

at::Tensor quantized_affine_scalar_cpu(const at::Tensor& q, const at::Tensor& q_scale,
                                       const at::Tensor& q_zero_point, double factor, double offset,
                                       const at::Tensor& scale, const at::Tensor& zero_point,
                                       int64_t activation) {
  constexpr const char* kOp = "quantized_affine_scalar";
  check_quantized_affine_scalar(q, q_scale, q_zero_point, scale, zero_point, activation);
  const CodeGrid x = read_grid(kOp, "q_scale", q_scale, "q_zero_point", q_zero_point);
  const CodeGrid y = read_grid(kOp, "scale", scale, "zero_point", zero_point);
  Constants constants;
  constants.append(kOp, factor, offset, x, y, /*channel=*/-1);
  return map_codes(q, x, y, constants, activation);
}

}  // namespace
}  // namespace horizon::ops

TORCH_LIBRARY_IMPL(horizon, CPU, m) {
  m.impl("quantized_affine", TORCH_FN(horizon::ops::quantized_affine_cpu));
  m.impl("quantized_affine_scalar", TORCH_FN(horizon::ops::quantized_affine_scalar_cpu));
}
