#include "ops/integer_checks.h"

#include <c10/util/irange.h>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <string>

#include "ops/checks.h"

namespace horizon::ops {
namespace {

std::string text(c10::SymIntArrayRef sizes) {
  std::ostringstream stream;
  stream << sizes;
  return stream.str();
}

}  // namespace

void check_codes(const char* op, const at::Tensor& reference, const char* reference_name,
                 const char* codes, const at::Tensor& tensor, const char* scale,
                 const at::Tensor& scale_tensor, const char* zero_point,
                 const at::Tensor& zero_point_tensor) {
  check_dtype(op, codes, tensor, at::kByte);
  check_device(op, codes, tensor, reference, reference_name);
  check_grid(op, reference, reference_name, scale, scale_tensor, zero_point, zero_point_tensor);
}

void check_grid(const char* op, const at::Tensor& reference, const char* reference_name,
                const char* scale, const at::Tensor& scale_tensor, const char* zero_point,
                const at::Tensor& zero_point_tensor) {
  check_scale(op, scale, scale_tensor);
  check_device(op, scale, scale_tensor, reference, reference_name);
  check_zero_point(op, zero_point, zero_point_tensor);
  check_device(op, zero_point, zero_point_tensor, reference, reference_name);
}

CodeGrid read_grid(const char* op, const char* scale, const at::Tensor& scale_tensor,
                   const char* zero_point, const at::Tensor& zero_point_tensor) {
  const double s = read_scale(op, scale, scale_tensor);
  return {s,
          read_zero_point(op, zero_point, zero_point_tensor, quant::kStoredMin, quant::kStoredMax)};
}

quant::Activation check_activation(const char* op, int64_t activation) {
  HORIZON_CHECK_VALUE(activation >= 0 && activation < quant::kActivationCount, op, "activation",
                      "0 (none), 1 (relu) or 2 (relu6)", activation);
  return static_cast<quant::Activation>(activation);
}

std::string indexed(const char* name, size_t i) {
  std::string text = name;
  return text.append("[").append(std::to_string(i)).append("]");
}

float check_constant(const char* op, const char* what, float value) {
  TORCH_CHECK_VALUE(std::isfinite(value), op, ": ", what, " must be finite in fp32, got ", value);
  return value;
}

c10::SymDimVector broadcast_sizes(const char* op, const char* a_name, c10::SymIntArrayRef a,
                                  const char* b_name, c10::SymIntArrayRef b) {
  c10::SymDimVector out(std::max(a.size(), b.size()), c10::SymInt(1));
  for (const auto i : c10::irange(out.size())) {
    const c10::SymInt x = i < a.size() ? a[a.size() - 1 - i] : c10::SymInt(1);
    const c10::SymInt y = i < b.size() ? b[b.size() - 1 - i] : c10::SymInt(1);
    TORCH_CHECK_VALUE(x == y || x == 1 || y == 1, op, ": '", b_name,
                      "' must be of a shape that broadcasts with that of ", a_name, " ", text(a),
                      ", got ", text(b));
    out[out.size() - 1 - i] = x == 1 ? y : x;
  }
  return out;
}

at::MemoryFormat result_format(const at::Tensor& like) { return like.suggest_memory_format(); }

c10::DimVector concrete(c10::SymIntArrayRef sizes) {
  c10::DimVector out;
  for (const auto& size : sizes) out.push_back(size.guard_int(__FILE__, __LINE__));
  return out;
}

}  // namespace horizon::ops
