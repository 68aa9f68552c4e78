#include "ops/quantized_pool.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/irange.h>
#include <torch/library.h>

#include "ops/checks.h"
#include "ops/integer_checks.h"
#include "ops/pool_shapes.h"

namespace horizon::ops {
namespace {

/// Everything but the last two sizes and the format, which are q's.
QuantizedPoolShape check_image(const char* op, const at::Tensor& q, const at::Tensor& q_scale,
                               const at::Tensor& q_zero_point, const at::Tensor& scale,
                               const at::Tensor& zero_point) {
  check_codes(op, q, "q", "q", q, "q_scale", q_scale, "q_zero_point", q_zero_point);
  check_grid(op, q, "q", "scale", scale, "zero_point", zero_point);
  return check_pooled_image(op, q);
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
  HORIZON_CHECK_VALUE(divisor_override.value_or(1) != 0, kOp, "divisor_override", "not zero", 0);
  check_pool_windows(kOp, q, kernel_size, stride, padding, ceil_mode, out);
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
