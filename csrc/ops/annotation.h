#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

namespace horizon::ops {

/// Whether `annotation::cast_hint` knows this dtype: "int8", "uint8" or "int16".
bool is_hint_dtype(std::string_view dtype);

/// The name of those dtypes in error messages.
inline constexpr const char* kHintDtypes = "one of int8, uint8, int16";

/// `self`, marked as a value to be quantized to `dtype`: an alias, no copy; the gradient passes.
///
/// `dtype` is "int8", "uint8" or "int16"; ValueError otherwise.
at::Tensor cast_hint(const at::Tensor& self, std::string_view dtype);

/// `self`, marked as the end of a group: an alias, no copy; the gradient passes.
at::Tensor stop_fusion(const at::Tensor& self);

}  // namespace horizon::ops
