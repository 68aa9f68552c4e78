#include "ops/checks.h"

#include <c10/core/GradMode.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <c10/util/irange.h>

#include <sstream>

namespace horizon::ops {
namespace {

template <typename Sizes>
std::string list_text(const Sizes& sizes) {
  std::ostringstream text;
  text << '[';
  for (const auto i : c10::irange(sizes.size())) text << (i == 0 ? "" : ", ") << sizes[i];
  text << ']';
  return text.str();
}

double read_double(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return *tensor.const_data_ptr<float>();
    case at::kDouble:
      return *tensor.const_data_ptr<double>();
    case at::kHalf:
      return static_cast<float>(*tensor.const_data_ptr<at::Half>());
    default:
      return static_cast<float>(*tensor.const_data_ptr<at::BFloat16>());
  }
}

}  // namespace

std::string dtype_text(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return "float32";
    case at::kDouble:
      return "float64";
    case at::kHalf:
      return "float16";
    case at::kBFloat16:
      return "bfloat16";
    case at::kByte:
      return "uint8";
    case at::kChar:
      return "int8";
    case at::kShort:
      return "int16";
    case at::kInt:
      return "int32";
    case at::kLong:
      return "int64";
    case at::kBool:
      return "bool";
    case at::kComplexFloat:
      return "complex64";
    case at::kComplexDouble:
      return "complex128";
    default:
      return c10::toString(type);
  }
}

std::string shape_text(const at::Tensor& tensor) { return list_text(tensor.sym_sizes()); }
std::string shape_text(c10::IntArrayRef sizes) { return list_text(sizes); }

bool is_float(at::ScalarType type) {
  return type == at::kFloat || type == at::kDouble || type == at::kHalf || type == at::kBFloat16;
}

void check_float(const char* op, const char* argument, const at::Tensor& tensor) {
  HORIZON_CHECK_TYPE(is_float(tensor.scalar_type()), op, argument,
                     "float32, float64, float16 or bfloat16", dtype_text(tensor.scalar_type()));
}

void check_dtype(const char* op, const char* argument, const at::Tensor& tensor,
                 at::ScalarType type) {
  HORIZON_CHECK_TYPE(tensor.scalar_type() == type, op, argument, dtype_text(type),
                     dtype_text(tensor.scalar_type()));
}

void check_dim(const char* op, const char* argument, const at::Tensor& tensor, int64_t dim) {
  HORIZON_CHECK_VALUE(tensor.dim() == dim, op, argument, c10::str(dim, "-dimensional"),
                      "shape " + shape_text(tensor));
}

void check_shape(const char* op, const char* argument, const at::Tensor& tensor,
                 c10::SymIntArrayRef sizes) {
  HORIZON_CHECK_VALUE(tensor.sym_sizes() == sizes, op, argument, "of shape " + list_text(sizes),
                      shape_text(tensor));
}

void check_device(const char* op, const char* argument, const at::Tensor& tensor,
                  const at::Tensor& reference, const char* reference_name) {
  HORIZON_CHECK_VALUE(
      tensor.device() == reference.device(), op, argument,
      c10::str("on the device of '", reference_name, "' (", reference.device(), ")"),
      tensor.device());
}

void check_scalar(const char* op, const char* argument, const at::Tensor& tensor) {
  HORIZON_CHECK_VALUE(tensor.dim() == 0 || tensor.sym_numel() == 1, op, argument,
                      "a tensor with one element", "shape " + shape_text(tensor));
}

void check_scale(const char* op, const char* argument, const at::Tensor& tensor) {
  check_float(op, argument, tensor);
  check_scalar(op, argument, tensor);
}

void check_integer(const char* op, const char* argument, const at::Tensor& tensor) {
  const at::ScalarType type = tensor.scalar_type();
  HORIZON_CHECK_TYPE(type == at::kInt || type == at::kLong, op, argument, "int32 or int64",
                     dtype_text(type));
}

void check_zero_point(const char* op, const char* argument, const at::Tensor& tensor) {
  check_integer(op, argument, tensor);
  check_scalar(op, argument, tensor);
}

void check_no_gradient(const char* op, const char* argument, const at::Tensor& tensor) {
  HORIZON_CHECK_VALUE(!(c10::GradMode::is_enabled() && tensor.requires_grad()), op, argument,
                      "a tensor that needs no gradient", "requires_grad=True");
}

void check_no_tangent(const char* op, const char* argument, const at::Tensor& tensor) {
  HORIZON_CHECK_IMPLEMENTED(!tensor._fw_grad(/*level=*/0).defined(), op, argument,
                            "used in reverse mode only", "a forward-mode tangent");
}

void check_scale_value(const char* op, const char* argument, float value) {
  HORIZON_CHECK_VALUE(std::isfinite(value) && value > 0.0F, op, argument, "finite and positive",
                      value);
  HORIZON_CHECK_VALUE(value >= std::numeric_limits<float>::min(), op, argument,
                      "a normal fp32 number (its reciprocal is finite)", value);
}

float read_scale(const char* op, const char* argument, const at::Tensor& tensor) {
  const auto value = static_cast<float>(read_double(tensor));
  check_scale_value(op, argument, value);
  return value;
}

void check_zero_point_value(const char* op, const char* argument, int64_t value, int64_t lo,
                            int64_t hi) {
  HORIZON_CHECK_VALUE(value >= lo && value <= hi, op, argument, c10::str("in [", lo, ", ", hi, "]"),
                      value);
}

int32_t read_zero_point(const char* op, const char* argument, const at::Tensor& tensor, int64_t lo,
                        int64_t hi) {
  const int64_t value = tensor.scalar_type() == at::kInt ? *tensor.const_data_ptr<int32_t>()
                                                         : *tensor.const_data_ptr<int64_t>();
  check_zero_point_value(op, argument, value, lo, hi);
  return static_cast<int32_t>(value);
}

void check_quant_range(const char* op, int64_t lo, int64_t hi) {
  constexpr int64_t kLowest = std::numeric_limits<int32_t>::min();
  constexpr int64_t kHighest = std::numeric_limits<int32_t>::max();
  HORIZON_CHECK_VALUE(lo >= kLowest, op, "quant_min", c10::str("at least ", kLowest), lo);
  HORIZON_CHECK_VALUE(hi <= kHighest, op, "quant_max", c10::str("at most ", kHighest), hi);
  HORIZON_CHECK_VALUE(lo < hi, op, "quant_min", c10::str("less than quant_max (", hi, ")"), lo);
}

int64_t wrap_axis(const char* op, const char* argument, int64_t axis, int64_t dim) {
  HORIZON_CHECK_VALUE(dim > 0, op, "x", "at least 1-dimensional to have channels", "shape []");
  HORIZON_CHECK_VALUE(axis >= -dim && axis < dim, op, argument,
                      c10::str("in [", -dim, ", ", dim - 1, "]"), axis);
  return axis < 0 ? axis + dim : axis;
}

}  // namespace horizon::ops
