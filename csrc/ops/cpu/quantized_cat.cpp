#include "ops/quantized_cat.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <c10/util/irange.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "ops/cpu/kernels/elementwise.h"
#include "ops/integer_checks.h"

namespace horizon::ops {
namespace {

constexpr const char* kOp = "quantized_cat";
constexpr int64_t kGrain = 1 << 15;

/// An operand: rows of `width` codes, which go to `place` codes after the beginning of a row of the
/// result.
struct Operand {
  at::Tensor codes;
  int64_t width, place;
  bool copied;  ///< on the result's grid already
  cpu::AffineMap map;
};

/// Writes rows [begin, end) of `operand` into rows of `stride` codes.
void place_rows(const Operand& operand, int64_t begin, int64_t end, int64_t stride, uint8_t* to) {
  const int64_t width = operand.width;
  const auto* from = operand.codes.const_data_ptr<uint8_t>();
  if (!operand.copied) {
    cpu::elementwise_kernels().affine(operand.map, from + begin * width, end - begin, width, width,
                                      to + begin * stride + operand.place, stride);
    return;
  }
  for (const auto r : c10::irange(begin, end)) {
    std::copy_n(from + r * width, width, to + r * stride + operand.place);
  }
}

Operand read_operand(const at::Tensor& q, size_t i, const at::Tensor& scale,
                     const at::Tensor& zero_point, const CodeGrid& y) {
  const std::string name = indexed("scales", i);
  const CodeGrid x =
      read_grid(kOp, name.c_str(), scale, indexed("zero_points", i).c_str(), zero_point);
  const float multiplier = quant::scale_ratio(x.scale, y.scale);
  if (!std::isfinite(multiplier)) {
    check_constant(kOp, c10::str("'", name, "' over the result's scale").c_str(), multiplier);
  }
  const cpu::OutputStage stage{quant::Activation::kNone, 0.0F, static_cast<float>(y.zero_point)};
  return {q,
          0,
          0,
          x.scale == y.scale && x.zero_point == y.zero_point,
          {x.zero_point, multiplier, 0.0F, stage}};
}

at::Tensor quantized_cat_cpu(at::TensorList q, at::TensorList scales, at::TensorList zero_points,
                             int64_t dim, const at::Tensor& scale, const at::Tensor& zero_point) {
  const auto shape = check_quantized_cat(q, scales, zero_points, dim, scale, zero_point);
  const CodeGrid y = read_grid(kOp, "scale", scale, "zero_point", zero_point);
  const auto sizes = concrete(shape.sizes);
  const ConcatRows order(sizes, shape.dim, shape.format);
  const int64_t stride = sizes[shape.dim] * order.inner;
  std::vector<Operand> operands;
  int64_t place = 0;
  for (const auto i : c10::irange(q.size())) {
    Operand operand = read_operand(q[i], i, scales[i], zero_points[i], y);
    if (q[i].numel() == 0) continue;
    operand.codes = q[i].contiguous(shape.format);
    operand.width = q[i].size(shape.dim) * order.inner;
    operand.place = place;
    place += operand.width;
    operands.push_back(std::move(operand));
  }
  const at::Tensor out = at::empty(sizes, q[0].options(), shape.format);
  if (out.numel() == 0) return out;
  auto* to = out.mutable_data_ptr<uint8_t>();
  // The operands take turns on pieces of the result that stay in the cache.
  const int64_t piece = std::max<int64_t>(1, kGrain / stride);
  at::parallel_for(0, order.outer, piece, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; r += piece) {
      for (const Operand& operand : operands) {
        place_rows(operand, r, std::min(r + piece, end), stride, to);
      }
    }
  });
  return out;
}

}  // namespace
}  // namespace horizon::ops

TORCH_LIBRARY_IMPL(horizon, CPU, m) {
  m.impl("quantized_cat", TORCH_FN(horizon::ops::quantized_cat_cpu));
}
