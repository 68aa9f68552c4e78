#pragma once

#include <ATen/core/Tensor.h>

namespace horizon::ops {

/// A copy of `value`; its gradient goes to `surrogate`, unchanged.
///
/// Both of one shape, float dtype and device.
at::Tensor straight_through(const at::Tensor& value, const at::Tensor& surrogate);

}  // namespace horizon::ops
