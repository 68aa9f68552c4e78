#include "ops/quantized_pool.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/irange.h>
#include <torch/library.h>

#include <limits>

#include "ops/checks.h"
#include "ops/integer_checks.h"

namespace horizon::ops {
namespace {

constexpr int64_t kLargest = std::numeric_limits<int32_t>::max();

std::array<int64_t, 2> read_pair(const char* op, const char* name, at::IntArrayRef list,
                                 int64_t least) {
  HORIZON_CHECK_VALUE(list.size() == 1 || list.size() == 2, op, name, "of one or two entries",
                      shape_text(list));
  for (const int64_t entry : list) {
    HORIZON_CHECK_VALUE(entry >= least && entry <= kLargest, op, name,
                        c10::str("at least ", least, " and at most ", kLargest), shape_text(list));
  }
  return {list[0], list.back()};
}

/// Everything but the last two sizes and the format, which are q's.
QuantizedPoolShape check_image(const char* op, const at::Tensor& q, const at::Tensor& q_scale,
                               const at::Tensor& q_zero_point, const at::Tensor& scale,
                               const at::Tensor& zero_point) {
  check_codes(op, q, "q", "q", q, "q_scale", q_scale, "q_zero_point", q_zero_point);
  check_grid(op, q, "q", "scale", scale, "zero_point", zero_point);
  HORIZON_CHECK_VALUE(q.dim() == 3 || q.dim() == 4, op, "q",
                      "[channels, height, width] or [batch, channels, height, width]",
                      shape_text(q));
  QuantizedPoolShape out;
  for (const auto d : c10::irange(q.dim())) {
    HORIZON_CHECK_VALUE((d == 0 && q.dim() == 4) || q.sym_size(d) >= 1, op, "q",
                        "non-empty but for the batch", shape_text(q));
    if (d < q.dim() - 2) out.sizes.push_back(q.sym_size(d));
  }
  out.format = q.dim() == 4 ? result_format(q) : at::MemoryFormat::Contiguous;
  return out;
}

}  // namespace

at::Tensor quantized_avg_pool2d(const at::Tensor& q, const at::Tensor& q_scale,
                                const at::Tensor& q_zero_point, at::IntArrayRef kernel_size,
                                at::IntArrayRef stride, at::IntArrayRef padding, bool ceil_mode,
                                bool count_include_pad, std::optional<int64_t> divisor_override,
                                const at::Tensor& scale, const at::Tensor& zero_point) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("horizon::quantized_avg_pool2d", "")
                             .typed<decltype(quantized_avg_pool2d)>();
  return op.call(q, q_scale, q_zero_point, kernel_size, stride, padding, ceil_mode,
                 count_include_pad, divisor_override, scale, zero_point);
}

at::Tensor quantized_adaptive_avg_pool2d(const at::Tensor& q, const at::Tensor& q_scale,
                                         const at::Tensor& q_zero_point,
                                         at::IntArrayRef output_size, const at::Tensor& scale,
                                         const at::Tensor& zero_point) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("horizon::quantized_adaptive_avg_pool2d", "")
                             .typed<decltype(quantized_adaptive_avg_pool2d)>();
  return op.call(q, q_scale, q_zero_point, output_size, scale, zero_point);
}

at::Tensor quantized_mean(const at::Tensor& q, const at::Tensor& q_scale,
                          const at::Tensor& q_zero_point, at::IntArrayRef dim, bool keepdim,
                          const at::Tensor& scale, const at::Tensor& zero_point) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("horizon::quantized_mean", "")
                             .typed<decltype(quantized_mean)>();
  return op.call(q, q_scale, q_zero_point, dim, keepdim, scale, zero_point);
}

QuantizedPoolShape check_quantized_avg_pool2d(const at::Tensor& q, const at::Tensor& q_scale,
                                              const at::Tensor& q_zero_point,
                                              at::IntArrayRef kernel_size, at::IntArrayRef stride,
                                              at::IntArrayRef padding, bool ceil_mode,
                                              std::optional<int64_t> divisor_override,
                                              const at::Tensor& scale,
                                              const at::Tensor& zero_point) {
  constexpr const char* kOp = "quantized_avg_pool2d";
  QuantizedPoolShape out = check_image(kOp, q, q_scale, q_zero_point, scale, zero_point);
  out.kernel = read_pair(kOp, "kernel_size", kernel_size, 1);
  out.stride = stride.empty() ? out.kernel : read_pair(kOp, "stride", stride, 1);
  out.padding = read_pair(kOp, "padding", padding, 0);
  HORIZON_CHECK_VALUE(divisor_override.value_or(1) != 0, kOp, "divisor_override", "not zero", 0);
  for (const auto axis : c10::irange(2)) {
    HORIZON_CHECK_VALUE(out.padding[axis] <= out.kernel[axis] / 2, kOp, "padding",
                        "at most half the kernel", shape_text(padding));
    const c10::SymInt size = q.sym_size(q.dim() - 2 + axis);
    const c10::SymInt room = size + 2 * out.padding[axis] - out.kernel[axis];
    HORIZON_CHECK_VALUE(room >= 0, kOp, "kernel_size", "no larger than 'q' with its padding",
                        shape_text(kernel_size));
    c10::SymInt count = (room + (ceil_mode ? out.stride[axis] - 1 : 0)) / out.stride[axis] + 1;
    // The last window starts inside the image or its padding in front.
    if (ceil_mode && (count - 1) * out.stride[axis] >= size + out.padding[axis]) count = count - 1;
    out.sizes.push_back(count);
  }
  return out;
}

QuantizedPoolShape check_quantized_adaptive_avg_pool2d(
    const at::Tensor& q, const at::Tensor& q_scale, const at::Tensor& q_zero_point,
    at::IntArrayRef output_size, const at::Tensor& scale, const at::Tensor& zero_point) {
  constexpr const char* kOp = "quantized_adaptive_avg_pool2d";
  QuantizedPoolShape out = check_image(kOp, q, q_scale, q_zero_point, scale, zero_point);
  HORIZON_CHECK_VALUE(output_size.size() == 2, kOp, "output_size", "of two entries",
                      shape_text(output_size));
  for (const int64_t size : read_pair(kOp, "output_size", output_size, 0)) {
    out.sizes.push_back(size);
  }
  return out;
}

QuantizedMeanShape check_quantized_mean(const at::Tensor& q, const at::Tensor& q_scale,
                                        const at::Tensor& q_zero_point, at::IntArrayRef dim,
                                        bool keepdim, const at::Tensor& scale,
                                        const at::Tensor& zero_point) {
  constexpr const char* kOp = "quantized_mean";
  check_codes(kOp, q, "q", "q", q, "q_scale", q_scale, "q_zero_point", q_zero_point);
  check_grid(kOp, q, "q", "scale", scale, "zero_point", zero_point);
  const int64_t range = std::max<int64_t>(q.dim(), 1);
  QuantizedMeanShape out;
  out.reduced.assign(range, dim.empty());
  for (const int64_t d : dim) {
    HORIZON_CHECK_VALUE(d >= -range && d < range, kOp, "dim",
                        c10::str("in [", -range, ", ", range - 1, "]"), d);
    const int64_t wrapped = d < 0 ? d + range : d;
    HORIZON_CHECK_VALUE(!out.reduced[wrapped], kOp, "dim", "free of repetitions", shape_text(dim));
    out.reduced[wrapped] = true;
  }
  out.count = 1;
  c10::SymInt means = 1;
  for (const auto d : c10::irange(q.dim())) {
    const c10::SymInt size = q.sym_size(d);
    if (out.reduced[d]) {
      out.count = out.count * size;
      if (keepdim) out.sizes.push_back(1);
    } else {
      means = means * size;
      out.sizes.push_back(size);
    }
  }
  HORIZON_CHECK_VALUE(out.count >= 1 || means == 0, kOp, "q",
                      "non-empty in the dimensions that are averaged", shape_text(q));
  out.format = keepdim ? result_format(q) : at::MemoryFormat::Contiguous;
  return out;
}

}  // namespace horizon::ops

TORCH_LIBRARY_FRAGMENT(horizon, m) {
  m.def(
      "quantized_avg_pool2d(Tensor q, Tensor q_scale, Tensor q_zero_point, int[] kernel_size, "
      "int[] stride, int[] padding, bool ceil_mode, bool count_include_pad, "
      "int? divisor_override, Tensor scale, Tensor zero_point) -> Tensor");
  m.def(
      "quantized_adaptive_avg_pool2d(Tensor q, Tensor q_scale, Tensor q_zero_point, "
      "int[] output_size, Tensor scale, Tensor zero_point) -> Tensor");
  m.def(
      "quantized_mean(Tensor q, Tensor q_scale, Tensor q_zero_point, int[] dim, bool keepdim, "
      "Tensor scale, Tensor zero_point) -> Tensor");
}
