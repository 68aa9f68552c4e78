#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "quant/requantize.h"

// Checks that the integer ops share. Those of dtype, shape and device serve Meta kernels as well;
// the `read_` functions read values and need CPU tensors.
namespace horizon::ops {

/// Scale and stored zero point of a tensor of codes.
struct CodeGrid {
  double scale;  ///< an fp32 number
  int32_t zero_point;
};

/// A tensor of uint8 codes with its scale and zero point, all on the device of `reference`.
/// `codes` is the argument's name; the others are called `scale` and `zero_point`.
void check_codes(const char* op, const at::Tensor& reference, const char* reference_name,
                 const char* codes, const at::Tensor& tensor, const char* scale,
                 const at::Tensor& scale_tensor, const char* zero_point,
                 const at::Tensor& zero_point_tensor);

/// A scale and a zero point on the device of `reference`.
void check_grid(const char* op, const at::Tensor& reference, const char* reference_name,
                const char* scale, const at::Tensor& scale_tensor, const char* zero_point,
                const at::Tensor& zero_point_tensor);

/// The values of a checked grid; ValueError unless 0 <= zero point <= 255 and the scale is one.
CodeGrid read_grid(const char* op, const char* scale, const at::Tensor& scale_tensor,
                   const char* zero_point, const at::Tensor& zero_point_tensor);

/// The activation of an `activation` argument; ValueError unless 0, 1 or 2.
quant::Activation check_activation(const char* op, int64_t activation);

/// "name[i]": the i-th tensor of an argument.
std::string indexed(const char* name, size_t i);

/// Fails unless a constant of the arithmetic, named in words, is finite.
float check_constant(const char* op, const char* what, float value);

/// The sizes that two shapes broadcast to, as in torch.add; ValueError naming both arguments where
/// they do not.
c10::SymDimVector broadcast_sizes(const char* op, const char* a_name, c10::SymIntArrayRef a,
                                  const char* b_name, c10::SymIntArrayRef b);

/// channels_last for a tensor laid out so, contiguous otherwise; for tensors of any rank.
at::MemoryFormat result_format(const at::Tensor& like);

/// The concrete sizes of a shape outside tracing.
c10::DimVector concrete(c10::SymIntArrayRef sizes);

}  // namespace horizon::ops
