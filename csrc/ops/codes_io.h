#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace horizon::ops {

/// Stored codes, uint8: clamp(rint(x / scale) + zero_point, 0, 255), in x's shape and layout.
///
/// x: any float dtype. scale: float, one element. zero_point: int32 or int64, one element, in
/// [0, 255], as stored. Infinities saturate; NaN is a ValueError. No gradient.
at::Tensor quantize(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& zero_point);

/// (q - zero_point) * scale in q's shape and layout; computed in fp32, in fp64 for float64.
///
/// q: uint8. dtype: float32 (default), float64, float16 or bfloat16. No gradient.
at::Tensor dequantize(const at::Tensor& q, const at::Tensor& scale, const at::Tensor& zero_point,
                      std::optional<at::ScalarType> dtype = std::nullopt);

/// Argument checks, without tensor values; the second returns the dtype of the result.
void check_quantize(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& zero_point);
at::ScalarType check_dequantize(const at::Tensor& q, const at::Tensor& scale,
                                const at::Tensor& zero_point, std::optional<at::ScalarType> dtype);

}  // namespace horizon::ops
