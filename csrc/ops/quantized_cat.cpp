#include "ops/quantized_cat.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/irange.h>
#include <torch/library.h>

#include <algorithm>

#include "ops/checks.h"
#include "ops/integer_checks.h"

namespace horizon::ops {
namespace {

constexpr const char* kOp = "quantized_cat";

/// The format that some operand has and every operand lies in; one channel or one pixel lies in
/// any.
at::MemoryFormat common_format(at::TensorList q) {
  at::MemoryFormat format = at::MemoryFormat::Contiguous;
  for (const at::Tensor& operand : q) {
    if (format == at::MemoryFormat::Contiguous) format = result_format(operand);
  }
  for (const at::Tensor& operand : q) {
    const bool lies_in_it = result_format(operand) == format || operand.is_contiguous(format);
    if (!lies_in_it) return at::MemoryFormat::Contiguous;
  }
  return format;
}

}  // namespace

ConcatRows::ConcatRows(at::IntArrayRef sizes, int64_t dim, at::MemoryFormat format) {
  c10::DimVector order;
  for (const auto d : c10::irange(static_cast<int64_t>(sizes.size()))) order.push_back(d);
  if (format != at::MemoryFormat::Contiguous) {
    std::rotate(order.begin() + 1, order.begin() + 2, order.end());
  }
  const auto place = std::find(order.begin(), order.end(), dim);
  for (auto d = order.begin(); d != place; ++d) outer *= sizes[*d];
  for (auto d = place + 1; d != order.end(); ++d) inner *= sizes[*d];
}

at::Tensor quantized_cat(at::TensorList q, at::TensorList scales, at::TensorList zero_points,
                         int64_t dim, const at::Tensor& scale, const at::Tensor& zero_point) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("horizon::quantized_cat", "")
                             .typed<decltype(quantized_cat)>();
  return op.call(q, scales, zero_points, dim, scale, zero_point);
}

QuantizedCatShape check_quantized_cat(at::TensorList q, at::TensorList scales,
                                      at::TensorList zero_points, int64_t dim,
                                      const at::Tensor& scale, const at::Tensor& zero_point) {
  HORIZON_CHECK_VALUE(!q.empty(), kOp, "q", "at least one tensor", "an empty list");
  HORIZON_CHECK_VALUE(scales.size() == q.size(), kOp, "scales",
                      c10::str("one for each of the ", q.size(), " tensors"), scales.size());
  HORIZON_CHECK_VALUE(zero_points.size() == q.size(), kOp, "zero_points",
                      c10::str("one for each of the ", q.size(), " tensors"), zero_points.size());
  const at::Tensor& first = q[0];
  HORIZON_CHECK_VALUE(first.dim() >= 1, kOp, "q[0]", "at least 1-dimensional", shape_text(first));
  HORIZON_CHECK_VALUE(dim >= -first.dim() && dim < first.dim(), kOp, "dim",
                      c10::str("in [", -first.dim(), ", ", first.dim() - 1, "]"), dim);
  QuantizedCatShape out;
  out.dim = dim < 0 ? dim + first.dim() : dim;
  out.sizes.assign(first.sym_sizes().begin(), first.sym_sizes().end());
  for (const auto i : c10::irange(q.size())) {
    const std::string name = indexed("q", i);
    check_codes(kOp, first, "q[0]", name.c_str(), q[i], indexed("scales", i).c_str(), scales[i],
                indexed("zero_points", i).c_str(), zero_points[i]);
    if (i == 0) continue;
    check_dim(kOp, name.c_str(), q[i], first.dim());
    for (const auto d : c10::irange(first.dim())) {
      HORIZON_CHECK_VALUE(
          d == out.dim || q[i].sym_size(d) == first.sym_size(d), kOp, name,
          c10::str("shaped as q[0] ", shape_text(first), " but in dimension ", out.dim),
          shape_text(q[i]));
    }
    out.sizes[out.dim] = out.sizes[out.dim] + q[i].sym_size(out.dim);
  }
  out.format = common_format(q);
  check_grid(kOp, first, "q[0]", "scale", scale, "zero_point", zero_point);
  return out;
}

}  // namespace horizon::ops

TORCH_LIBRARY_FRAGMENT(horizon, m) {
  m.def(
      "quantized_cat(Tensor[] q, Tensor[] scales, Tensor[] zero_points, int dim, Tensor scale, "
      "Tensor zero_point) -> Tensor");
}
