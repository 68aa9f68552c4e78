#pragma once

#include <ATen/core/Tensor.h>

#include "ops/cpu/nhwc.h"
#include "ops/quantized_pool.h"

namespace horizon::ops {

/// Calls pool(image, shape), with a contiguous image in channels_last where the channels of a pixel
/// fill vectors, or the rows of the result do not.
template <typename Pool>
at::Tensor pool_in_fast_layout(const at::Tensor& q, const QuantizedPoolShape& shape,
                               const Pool& pool) {
  constexpr int64_t kVector = 16;
  const bool plane = shape.format == at::MemoryFormat::Contiguous && q.size(-3) > 1;
  if (!plane || (q.size(-3) < kVector && shape.sizes.back() >= kVector)) return pool(q, shape);
  QuantizedPoolShape last = shape;
  last.format = at::MemoryFormat::ChannelsLast;
  if (q.dim() == 4) return laid_out(pool(as_nhwc(q), last), at::MemoryFormat::Contiguous);
  last.sizes.insert(last.sizes.begin(), c10::SymInt(1));
  return laid_out(pool(as_nhwc(q), last), at::MemoryFormat::Contiguous).squeeze(0);
}

}  // namespace horizon::ops
