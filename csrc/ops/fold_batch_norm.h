#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace horizon::ops {

/// The affine map after a convolution's accumulator: a = gamma / sqrt(var + eps) and
/// bias * a + (beta - mean * a), both float64 [channels], in separate double operations.
///
/// Every tensor is float [channels] or None: bias 0, gamma 1, beta 0; without `mean` and `var`
/// (given together or not at all) a = 1 and the offset is the bias. Differentiable.
std::tuple<at::Tensor, at::Tensor> fold_batch_norm(const std::optional<at::Tensor>& bias,
                                                   const std::optional<at::Tensor>& gamma,
                                                   const std::optional<at::Tensor>& beta,
                                                   const std::optional<at::Tensor>& mean,
                                                   const std::optional<at::Tensor>& var, double eps,
                                                   int64_t channels);

}  // namespace horizon::ops
