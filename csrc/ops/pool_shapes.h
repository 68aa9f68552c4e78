#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/irange.h>

#include <array>
#include <cstdint>
#include <limits>

#include "ops/checks.h"
#include "ops/integer_checks.h"
#include "ops/quantized_pool.h"

// What the poolings share: their windows are those of nn.AvgPool2d and nn.MaxPool2d.
namespace horizon::ops {

/// Two entries from one or two of at least `least` that fit int32; ValueError otherwise.
inline std::array<int64_t, 2> read_pair(const char* op, const char* name, at::IntArrayRef list,
                                        int64_t least) {
  constexpr int64_t kLargest = std::numeric_limits<int32_t>::max();
  HORIZON_CHECK_VALUE(list.size() == 1 || list.size() == 2, op, name, "of one or two entries",
                      shape_text(list));
  for (const int64_t entry : list) {
    HORIZON_CHECK_VALUE(entry >= least && entry <= kLargest, op, name,
                        c10::str("at least ", least, " and at most ", kLargest), shape_text(list));
  }
  return {list[0], list.back()};
}

/// The shape up to the last two sizes, and the format: those of `q`, which must be an image.
inline QuantizedPoolShape check_pooled_image(const char* op, const at::Tensor& q) {
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

/// Reads the windows of `q` into `out` and appends the last two sizes; `stride` may be empty.
/// `out.dilation` is read before.
inline void check_pool_windows(const char* op, const at::Tensor& q, at::IntArrayRef kernel_size,
                               at::IntArrayRef stride, at::IntArrayRef padding, bool ceil_mode,
                               QuantizedPoolShape& out) {
  out.kernel = read_pair(op, "kernel_size", kernel_size, 1);
  out.stride = stride.empty() ? out.kernel : read_pair(op, "stride", stride, 1);
  out.padding = read_pair(op, "padding", padding, 0);
  for (const auto axis : c10::irange(2)) {
    const int64_t step = out.stride[axis];
    const int64_t reach = (out.kernel[axis] - 1) * out.dilation[axis] + 1;
    HORIZON_CHECK_VALUE(out.padding[axis] <= out.kernel[axis] / 2, op, "padding",
                        "at most half the kernel", shape_text(padding));
    const c10::SymInt size = q.sym_size(q.dim() - 2 + axis);
    // Rounding up, a window may stick out by less than a step, the only one included.
    const c10::SymInt room = size + 2 * out.padding[axis] - reach + (ceil_mode ? step - 1 : 0);
    HORIZON_CHECK_VALUE(room >= 0, op, "kernel_size",
                        c10::str("no larger than 'q' with its padding",
                                 out.dilation[axis] == 1 ? "" : ", 'dilation' included"),
                        shape_text(kernel_size));
    c10::SymInt count = room / step + 1;
    // The last window starts inside the image or its padding in front.
    if (ceil_mode && (count - 1) * step >= size + out.padding[axis]) count = count - 1;
    out.sizes.push_back(count);
  }
}

}  // namespace horizon::ops
