#include "ops/cuda/convolution.h"

#include <ATen/ops/sub.h>

#include "ops/fused_convolution.h"

namespace horizon::ops::cuda {

at::Tensor convolve_centred_codes(const FusedBackwardArgs& geometry, const at::Tensor& codes,
                                  const at::Tensor& zero_point, const at::Tensor& weight_codes,
                                  bool channels_last) {
  const at::Tensor values = at::sub(codes.to(at::kFloat), zero_point.reshape({}));
  return convolve(geometry, values, weight_codes.to(at::kFloat), std::nullopt, channels_last);
}

at::Tensor convolve_values(const FusedBackwardArgs& geometry, const at::Tensor& values,
                           const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                           bool channels_last) {
  return convolve(geometry, values, weight, bias, channels_last);
}

}  // namespace horizon::ops::cuda
