#pragma once

#include <ATen/core/Tensor.h>

namespace horizon::cpu {

struct Extremes {
  double lo, hi;
};

/// Minimum and maximum of a CPU tensor of a float dtype, any layout, at least one element; both NaN
/// if any element is. One pass if the tensor is dense.
Extremes extremes(const at::Tensor& x);

}  // namespace horizon::cpu
