#include "ops/dense_weight.h"

#include <ATen/ops/empty_like.h>

#include "ops/weights.h"

namespace horizon::ops {

DenseWeight dense_weight(const at::Tensor& weight, int64_t base, int64_t groups) {
  const bool last = weight.dim() == 4 && !weight.is_contiguous() &&
                    weight.is_contiguous(at::MemoryFormat::ChannelsLast);
  DenseWeight layout;
  layout.values = last ? weight : weight.contiguous();
  const int64_t rows = weight.size(0);
  if (static_cast<Base>(base) != Base::kConvTranspose2d) {
    layout.channels = rows;
    layout.inner = rows == 0 ? 0 : weight.numel() / rows;
    return layout;
  }
  const int64_t area = weight.size(2) * weight.size(3);
  layout.blocks = groups;
  layout.channels = weight.size(1);
  layout.outer = rows / groups * (last ? area : 1);
  layout.inner = last ? 1 : area;
  return layout;
}

at::Tensor in_layout_of(const at::Tensor& weight, const at::Tensor& dense) {
  at::Tensor out = at::empty_like(weight, dense.options(), at::MemoryFormat::Preserve);
  if (out.strides() == dense.strides()) return dense;
  return out.copy_(dense);
}

}  // namespace horizon::ops
