#include "ops/quantized_cat.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <c10/util/irange.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "ops/cpu/kernels/elementwise.h"
#include "ops/integer_checks.h"

namespace horizon::ops {
namespace {

constexpr const char* kOp = "quantized_cat";
constexpr int64_t kGrain = 1 << 15;

/// Sizes in the order of memory, with the concatenated dimension's place among them.
struct MemoryOrder {
  int64_t outer = 1, inner = 1;

  MemoryOrder(at::IntArrayRef sizes, int64_t dim, at::MemoryFormat format) {
    c10::DimVector order;
    for (const auto d : c10::irange(static_cast<int64_t>(sizes.size()))) order.push_back(d);
    if (format != at::MemoryFormat::Contiguous) {
      std::rotate(order.begin() + 1, order.begin() + 2, order.end());
    }
    const auto place = std::find(order.begin(), order.end(), dim);
    for (auto d = order.begin(); d != place; ++d) outer *= sizes[*d];
    for (auto d = place + 1; d != order.end(); ++d) inner *= sizes[*d];
  }
};

/// Copies rows of `width` codes into rows of `stride`, onto the grid of `y`.
void place_operand(const uint8_t* from, uint8_t* to, int64_t rows, int64_t width, int64_t stride,
                   const CodeGrid& x, const CodeGrid& y, float multiplier) {
  const bool same = x.scale == y.scale && x.zero_point == y.zero_point;
  const cpu::AffineMap map{x.zero_point,
                           multiplier,
                           0.0F,
                           {quant::Activation::kNone, 0.0F, static_cast<float>(y.zero_point)}};
  at::parallel_for(0, rows, std::max<int64_t>(1, kGrain / width), [&](int64_t begin, int64_t end) {
    if (!same) {
      cpu::elementwise_kernels().affine(map, from + begin * width, end - begin, width, width,
                                        to + begin * stride, stride);
      return;
    }
    for (const auto r : c10::irange(begin, end)) {
      std::copy_n(from + r * width, width, to + r * stride);
    }
  });
}

at::Tensor quantized_cat_cpu(at::TensorList q, at::TensorList scales, at::TensorList zero_points,
                             int64_t dim, const at::Tensor& scale, const at::Tensor& zero_point) {
  const auto shape = check_quantized_cat(q, scales, zero_points, dim, scale, zero_point);
  const CodeGrid y = read_grid(kOp, "scale", scale, "zero_point", zero_point);
  const auto sizes = concrete(shape.sizes);
  const at::Tensor out = at::empty(sizes, q[0].options(), shape.format);
  const MemoryOrder order(sizes, shape.dim, shape.format);
  const int64_t stride = sizes[shape.dim] * order.inner;
  auto* to = out.mutable_data_ptr<uint8_t>();
  for (const auto i : c10::irange(q.size())) {
    const std::string name = indexed("scales", i);
    const CodeGrid x =
        read_grid(kOp, name.c_str(), scales[i], indexed("zero_points", i).c_str(), zero_points[i]);
    const float multiplier = quant::scale_ratio(x.scale, y.scale);
    if (!std::isfinite(multiplier)) {
      check_constant(kOp, c10::str("'", name, "' over the result's scale").c_str(), multiplier);
    }
    if (q[i].numel() == 0) continue;
    const at::Tensor from = q[i].contiguous(shape.format);
    const int64_t width = q[i].size(shape.dim) * order.inner;
    place_operand(from.const_data_ptr<uint8_t>(), to, order.outer, width, stride, x, y, multiplier);
    to += width;
  }
  return out;
}

}  // namespace
}  // namespace horizon::ops

TORCH_LIBRARY_IMPL(horizon, CPU, m) {
  m.impl("quantized_cat", TORCH_FN(horizon::ops::quantized_cat_cpu));
}
