#include "nn/grid.h"

#include <c10/util/Exception.h>

#include "nn/layer.h"
#include "ops/checks.h"

namespace horizon::nn {

int64_t version_of(const at::Tensor& x) {
  return x.is_inference() ? -1 : static_cast<int64_t>(x._version());
}

at::Tensor with_grid(at::Tensor x, GridKind kind, const std::string& producer,
                     const at::Tensor& scale, const at::Tensor& zero_point) {
  auto grid = c10::make_intrusive<Grid>();
  grid->kind = kind;
  grid->scale = scale;
  grid->zero_point = zero_point;
  grid->version = version_of(x);
  grid->producer = producer;
  x.unsafeGetTensorImpl()->set_backend_meta(std::move(grid));
  return x;
}

const Grid* grid_of(const at::Tensor& x) {
  if (!x.defined()) return nullptr;
  return dynamic_cast<const Grid*>(x.unsafeGetTensorImpl()->get_backend_meta());
}

const Grid& operand_grid(const at::Tensor& x, const std::string& path, const char* operand,
                         bool codes) {
  check_defined(x, path, operand);
  const Grid* grid = grid_of(x);
  TORCH_CHECK_VALUE(grid != nullptr, path, ": '", operand, "' must be quantized, got a ",
                    ops::dtype_text(x.scalar_type()),
                    " tensor without a grid: put a QuantStub before ", path,
                    ", use modules in place of functions and operators there (FloatFunctional for "
                    "+), or leave it float");
  TORCH_CHECK_VALUE(grid->kind != GridKind::kHighPrecision, path, ": '", operand,
                    "' is the high-precision (fp32) output of ", grid->producer, ": give ",
                    grid->producer, " the ordinary qconfig, or put a QuantStub before ", path);
  const bool is_codes = grid->kind == GridKind::kCodes;
  TORCH_CHECK_TYPE(is_codes == codes, path, ": '", operand, "' must be ", codes ? "codes" : "float",
                   ", got ", is_codes ? "codes" : "floats", " of ", grid->producer);
  TORCH_CHECK_VALUE(grid->version == version_of(x), path, ": '", operand, "' (the result of ",
                    grid->producer,
                    ") was changed in place after it was quantized: use an out-of-place op, or a "
                    "FloatFunctional");
  return *grid;
}

}  // namespace horizon::nn
