#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace horizon::ops {

/// act(factor * x + offset) on codes: requantization and stand-alone batch norm.
///
/// `q`: uint8 codes; scales: float 0-d; zero points: int 0-d, as stored (0..255); `factor`,
/// `offset`: fp64 of one entry, or one for each channel (dimension 1) of `q`; `activation`: 0 none,
/// 1 relu, 2 relu6. Returns uint8 codes in q's memory format. Raises ValueError or TypeError for
/// arguments that break these rules, and for a constant that is not finite.
at::Tensor quantized_affine(const at::Tensor& q, const at::Tensor& q_scale,
                            const at::Tensor& q_zero_point, const at::Tensor& factor,
                            const at::Tensor& offset, const at::Tensor& scale,
                            const at::Tensor& zero_point, int64_t activation);

/// The same with two numbers, for relu6 and for sums and products with a number: a call needs no
/// tensor made for it.
at::Tensor quantized_affine_scalar(const at::Tensor& q, const at::Tensor& q_scale,
                                   const at::Tensor& q_zero_point, double factor, double offset,
                                   const at::Tensor& scale, const at::Tensor& zero_point,
                                   int64_t activation);

/// These check everything but the values of tensors; for the backends.
void check_quantized_affine(const at::Tensor& q, const at::Tensor& q_scale,
                            const at::Tensor& q_zero_point, const at::Tensor& factor,
                            const at::Tensor& offset, const at::Tensor& scale,
                            const at::Tensor& zero_point, int64_t activation);
void check_quantized_affine_scalar(const at::Tensor& q, const at::Tensor& q_scale,
                                   const at::Tensor& q_zero_point, const at::Tensor& scale,
                                   const at::Tensor& zero_point, int64_t activation);

}  // namespace horizon::ops
