#include "ops/cpu/nhwc.h"

#include <ATen/ops/empty.h>

namespace horizon::ops {

at::Tensor as_nhwc(const at::Tensor& image) {
  const at::Tensor batch = image.dim() == 3 ? image.unsqueeze(0) : image;
  return batch.contiguous(at::MemoryFormat::ChannelsLast);
}

NhwcResult::NhwcResult(at::IntArrayRef sizes, at::ScalarType type, at::MemoryFormat format,
                       bool image)
    : result_(at::empty(sizes, at::TensorOptions(type), format)), nhwc_(result_) {
  if (!image) return;
  // The two orders are one for a single channel or a single pixel.
  const bool same = result_.size(-3) <= 1 || result_.size(-1) * result_.size(-2) <= 1;
  if (same || format != at::MemoryFormat::Contiguous) return;
  const at::Tensor batch = result_.dim() == 3 ? result_.unsqueeze(0) : result_;
  nhwc_ = at::empty(batch.sizes(), result_.options(), at::MemoryFormat::ChannelsLast);
}

at::Tensor NhwcResult::finish() const {
  if (!nhwc_.is_same(result_)) result_.copy_(result_.dim() == 3 ? nhwc_.squeeze(0) : nhwc_);
  return result_;
}

}  // namespace horizon::ops
