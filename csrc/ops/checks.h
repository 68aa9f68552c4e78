#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <cmath>
#include <limits>
#include <optional>
#include <string>

/// Throws ValueError (TypeError, NotImplementedError) "op: 'argument' must be RULE, got VALUE"
/// unless `condition` holds. RULE and VALUE may be anything that can be streamed (c10::str joins
/// several); they are evaluated only on failure.
#define HORIZON_CHECK_VALUE(condition, op, argument, rule, got) \
  TORCH_CHECK_VALUE(condition, op, ": '", argument, "' must be ", rule, ", got ", got)
#define HORIZON_CHECK_TYPE(condition, op, argument, rule, got) \
  TORCH_CHECK_TYPE(condition, op, ": '", argument, "' must be ", rule, ", got ", got)
#define HORIZON_CHECK_IMPLEMENTED(condition, op, argument, rule, got) \
  TORCH_CHECK_NOT_IMPLEMENTED(condition, op, ": '", argument, "' must be ", rule, ", got ", got)

namespace horizon::ops {

/// "float32", "int8", …: the dtype as Python spells it.
std::string dtype_text(at::ScalarType type);

/// "[2, 3]"; symbolic sizes are printed as their expressions.
std::string shape_text(const at::Tensor& tensor);
std::string shape_text(c10::IntArrayRef sizes);

/// Whether values of this type can be quantized: float32, float64, float16, bfloat16.
bool is_float(at::ScalarType type);

/// A tensor of one of the four float dtypes; TypeError otherwise.
void check_float(const char* op, const char* argument, const at::Tensor& tensor);

/// A tensor of exactly this dtype; TypeError otherwise.
void check_dtype(const char* op, const char* argument, const at::Tensor& tensor,
                 at::ScalarType type);

/// A tensor with this number of dimensions; ValueError otherwise.
void check_dim(const char* op, const char* argument, const at::Tensor& tensor, int64_t dim);

/// A tensor of the given shape; ValueError otherwise.
void check_shape(const char* op, const char* argument, const at::Tensor& tensor,
                 c10::SymIntArrayRef sizes);

/// A tensor on the device of `reference`; ValueError otherwise.
void check_device(const char* op, const char* argument, const at::Tensor& tensor,
                  const at::Tensor& reference, const char* reference_name);

/// One number: a 0-d tensor or one with a single element; ValueError otherwise.
void check_scalar(const char* op, const char* argument, const at::Tensor& tensor);

/// A float tensor with one element. The value is read by `read_scale`.
void check_scale(const char* op, const char* argument, const at::Tensor& tensor);

/// An int32 or int64 tensor; TypeError otherwise.
void check_integer(const char* op, const char* argument, const at::Tensor& tensor);

/// An int32 or int64 tensor with one element. The value is read by `read_zero_point`.
void check_zero_point(const char* op, const char* argument, const at::Tensor& tensor);

/// Refuses what the operator has no gradient for: `tensor` requiring one while gradients are
/// recorded (ValueError).
void check_no_gradient(const char* op, const char* argument, const at::Tensor& tensor);

/// Refuses forward-mode tangents, which no operator here propagates.
void check_no_tangent(const char* op, const char* argument, const at::Tensor& tensor);

/// Fails unless `value` is a scale: finite, positive and a normal fp32 number, so that 1 / value is
/// finite as well.
void check_scale_value(const char* op, const char* argument, float value);

/// The value of a checked CPU scale, rounded to fp32; ValueError unless `check_scale_value` holds.
float read_scale(const char* op, const char* argument, const at::Tensor& tensor);

/// Fails unless `value` lies in [lo, hi].
void check_zero_point_value(const char* op, const char* argument, int64_t value, int64_t lo,
                            int64_t hi);

/// The value of a checked CPU zero point; ValueError unless it lies in [lo, hi].
int32_t read_zero_point(const char* op, const char* argument, const at::Tensor& tensor, int64_t lo,
                        int64_t hi);

/// Fails unless lo < hi and both fit int32. The arguments are called quant_min and quant_max.
void check_quant_range(const char* op, int64_t lo, int64_t hi);

/// `axis` in [0, dim) from an axis in [-dim, dim); ValueError outside, and for 0-d tensors.
int64_t wrap_axis(const char* op, const char* argument, int64_t axis, int64_t dim);

}  // namespace horizon::ops
