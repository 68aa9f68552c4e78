#include "ops/pack_weight.h"

#include <torch/library.h>

#include "ops/conv_weights.h"
#include "ops/quantized_conv_check.h"

// A weight is packed once, and unpacked where a model is saved or read: on the host, with the one
// description of the layout that there is.
namespace horizon::ops {
namespace {

at::Tensor pack_weight_cuda(const at::Tensor& weight, int64_t base, at::IntArrayRef stride,
                            at::IntArrayRef dilation, int64_t groups) {
  check_pack_weight(weight, base, stride, dilation, groups);
  return pack_weight(weight.cpu(), base, stride, dilation, groups).to(weight.device());
}

at::Tensor unpack_weight_cuda(const at::Tensor& packed, at::IntArrayRef weight_size, int64_t base,
                              at::IntArrayRef stride, at::IntArrayRef dilation, int64_t groups) {
  check_packed_weight("unpack_weight", packed, weight_size, base, stride, dilation, groups);
  return unpack_weight(packed.cpu(), weight_size, base, stride, dilation, groups)
      .to(packed.device());
}

TORCH_LIBRARY_IMPL(horizon, CUDA, m) {
  m.impl("pack_weight", &pack_weight_cuda);
  m.impl("unpack_weight", &unpack_weight_cuda);
}

}  // namespace
}  // namespace horizon::ops
