#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace horizon::ops {

/// act(a + alpha * b) on codes; alpha is 1 or -1.
///
/// `a`, `b`: uint8 codes that broadcast; scales: float 0-d; zero points: int 0-d, as stored
/// (0..255); `activation`: 0 none, 1 relu, 2 relu6. Returns uint8 codes on the grid of `scale` and
/// `zero_point`, in the memory format of the operand that has the result's shape. Raises ValueError
/// or TypeError for arguments that break these rules.
at::Tensor quantized_add(const at::Tensor& a, const at::Tensor& a_scale,
                         const at::Tensor& a_zero_point, const at::Tensor& b,
                         const at::Tensor& b_scale, const at::Tensor& b_zero_point,
                         const at::Tensor& scale, const at::Tensor& zero_point, int64_t activation,
                         double alpha);

/// act(a * b) on codes; otherwise as quantized_add.
at::Tensor quantized_mul(const at::Tensor& a, const at::Tensor& a_scale,
                         const at::Tensor& a_zero_point, const at::Tensor& b,
                         const at::Tensor& b_scale, const at::Tensor& b_zero_point,
                         const at::Tensor& scale, const at::Tensor& zero_point, int64_t activation);

/// The checked arguments of a binary operation.
struct QuantizedBinaryShape {
  c10::SymDimVector sizes;
  at::MemoryFormat format;
};

/// Checks everything but the values of tensors; for the backends.
QuantizedBinaryShape check_quantized_binary(
    const char* op, const at::Tensor& a, const at::Tensor& a_scale, const at::Tensor& a_zero_point,
    const at::Tensor& b, const at::Tensor& b_scale, const at::Tensor& b_zero_point,
    const at::Tensor& scale, const at::Tensor& zero_point, int64_t activation, double alpha);

}  // namespace horizon::ops
