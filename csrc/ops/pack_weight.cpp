#include "ops/pack_weight.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace horizon::ops {

at::Tensor pack_weight(const at::Tensor& weight, int64_t base, at::IntArrayRef stride,
                       at::IntArrayRef dilation, int64_t groups) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("horizon::pack_weight", "")
                             .typed<decltype(pack_weight)>();
  return op.call(weight, base, stride, dilation, groups);
}

at::Tensor unpack_weight(const at::Tensor& packed, at::IntArrayRef weight_size, int64_t base,
                         at::IntArrayRef stride, at::IntArrayRef dilation, int64_t groups) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("horizon::unpack_weight", "")
                             .typed<decltype(unpack_weight)>();
  return op.call(packed, weight_size, base, stride, dilation, groups);
}

}  // namespace horizon::ops

TORCH_LIBRARY_FRAGMENT(horizon, m) {
  m.def("pack_weight(Tensor weight, int base, int[] stride, int[] dilation, int groups) -> Tensor");
  m.def(
      "unpack_weight(Tensor packed, int[] weight_size, int base, int[] stride, int[] dilation, "
      "int groups) -> Tensor");
}
