#pragma once

#include <ATen/core/Tensor.h>

#include "ops/quantized_pool.h"

namespace horizon::ops {

/// Calls pool(image, shape), with a contiguous image in channels_last where its result has rows of
/// fewer than kShortRow windows: those fill no vectors, and the channels of a pixel do.
template <typename Pool>
at::Tensor pool_in_fast_layout(const at::Tensor& q, const QuantizedPoolShape& shape,
                               const Pool& pool) {
  constexpr int64_t kShortRow = 16;
  const bool plane = shape.format == at::MemoryFormat::Contiguous && q.size(-3) > 1;
  if (!plane || shape.sizes.back() >= kShortRow) return pool(q, shape);
  QuantizedPoolShape last = shape;
  last.format = at::MemoryFormat::ChannelsLast;
  if (q.dim() == 4) return pool(q, last).contiguous();
  last.sizes.insert(last.sizes.begin(), c10::SymInt(1));
  return pool(q.unsqueeze(0), last).squeeze(0).contiguous();
}

}  // namespace horizon::ops
