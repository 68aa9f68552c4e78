#include "nn/float_functional.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sub.h>

#include <algorithm>

#include "nn/grid.h"
#include "nn/state.h"
#include "ops/codes_io.h"
#include "ops/quantize_activation.h"
#include "ops/quantized_binary.h"
#include "ops/quantized_cat.h"
#include "ops/straight_through.h"

namespace horizon::nn {
namespace {

enum class Method { kAdd, kAddReLU, kSub, kMul, kCat };

using Tensors = std::vector<at::Tensor>;

at::Tensor run_float(Method method, const Tensors& t, int64_t dim) {
  for (const at::Tensor& operand : t) check_defined(operand, "FloatFunctional", "operand");
  switch (method) {
    case Method::kAdd:
      return at::add(t[0], t[1]);
    case Method::kAddReLU:
      return at::relu(at::add(t[0], t[1]));
    case Method::kSub:
      return at::sub(t[0], t[1]);
    case Method::kMul:
      return at::mul(t[0], t[1]);
    default:
      return at::cat(t, dim);
  }
}

at::Tensor run_codes(Method method, const Tensors& q, const Tensors& scales,
                     const Tensors& zero_points, int64_t dim, const at::Tensor& scale,
                     const at::Tensor& zero_point) {
  if (method == Method::kCat) {
    return ops::quantized_cat(q, scales, zero_points, dim, scale, zero_point);
  }
  if (method == Method::kMul) {
    return ops::quantized_mul(q[0], scales[0], zero_points[0], q[1], scales[1], zero_points[1],
                              scale, zero_point, 0);
  }
  return ops::quantized_add(q[0], scales[0], zero_points[0], q[1], scales[1], zero_points[1], scale,
                            zero_point, method == Method::kAddReLU ? 1 : 0,
                            method == Method::kSub ? -1.0 : 1.0);
}

struct Grids {
  Tensors scales, zero_points;
  bool complete = true;
};

Grids read_grids(const Tensors& tensors, const std::string& path, bool codes) {
  TORCH_CHECK_VALUE(!tensors.empty(), path, ": 'tensors' must hold at least one tensor, got none");
  Grids grids;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::string operand = "operand " + std::to_string(i);
    const Grid& grid = operand_grid(tensors[i], path, operand.c_str(), codes);
    grids.complete = grids.complete && grid.scale.defined();
    grids.scales.push_back(grid.scale);
    grids.zero_points.push_back(grid.zero_point);
  }
  return grids;
}

at::Tensor run_prepared(FakeQuantizeImpl& quantizer, const std::string& path, Method method,
                        const Tensors& tensors, int64_t dim, bool training) {
  const Grids grids = read_grids(tensors, path, false);
  return named(path, [&] {
    if (!grids.complete || training || !quantizer.fake_quant_enabled || quantizer.moves()) {
      return quantizer.quantize(run_float(method, tensors, dim), path);
    }
    const auto [scale, zero_point] = quantizer.grid();
    Tensors codes;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      codes.push_back(ops::quantize(tensors[i].detach(), grids.scales[i], grids.zero_points[i]));
    }
    const at::Tensor q =
        run_codes(method, codes, grids.scales, grids.zero_points, dim, scale, zero_point);
    at::Tensor y = ops::dequantize(q, scale, zero_point, tensors[0].scalar_type());
    if (at::GradMode::is_enabled() &&
        std::any_of(tensors.begin(), tensors.end(),
                    [](const at::Tensor& t) { return t.requires_grad(); })) {
      y = ops::straight_through(y, std::get<0>(ops::quantize_activation(
                                       run_float(method, tensors, dim), quantizer.args(false))));
    }
    return with_grid(y, GridKind::kGrid, path, scale, zero_point);
  });
}

at::Tensor run_converted(const at::Tensor& scale, const at::Tensor& zero_point,
                         const std::string& path, Method method, const Tensors& tensors,
                         int64_t dim) {
  const Grids grids = read_grids(tensors, path, true);
  return named(path, [&] {
    const at::Tensor q =
        run_codes(method, tensors, grids.scales, grids.zero_points, dim, scale, zero_point);
    return with_grid(q, GridKind::kCodes, path, scale, zero_point);
  });
}

}  // namespace

// --- Float ----------------------------------------------------------------------------------

at::Tensor FloatFunctionalImpl::add(const at::Tensor& x, const at::Tensor& y) {
  return run_float(Method::kAdd, {x, y}, 0);
}
at::Tensor FloatFunctionalImpl::add_relu(const at::Tensor& x, const at::Tensor& y) {
  return run_float(Method::kAddReLU, {x, y}, 0);
}
at::Tensor FloatFunctionalImpl::sub(const at::Tensor& x, const at::Tensor& y) {
  return run_float(Method::kSub, {x, y}, 0);
}
at::Tensor FloatFunctionalImpl::mul(const at::Tensor& x, const at::Tensor& y) {
  return run_float(Method::kMul, {x, y}, 0);
}
at::Tensor FloatFunctionalImpl::cat(const Tensors& tensors, int64_t dim) {
  return run_float(Method::kCat, tensors, dim);
}

at::Tensor FloatFunctionalImpl::forward(const at::Tensor& /*input*/) {
  TORCH_CHECK(false, path.empty() ? "FloatFunctional" : path,
              " is used through its methods (add, mul, cat, …), got a call of forward");
}

std::shared_ptr<FloatFunctionalImpl> FloatFunctionalImpl::blank() const {
  return std::make_shared<FloatFunctionalImpl>();
}

void FloatFunctionalImpl::pretty_print(std::ostream& stream) const {
  stream << "horizon::nn::FloatFunctional()";
}

// --- Prepared -------------------------------------------------------------------------------

PreparedFunctionalImpl::PreparedFunctionalImpl(const QConfig& qconfig) : qconfig_(qconfig) {
  quantizer_ =
      register_module("activation_post_process", std::make_shared<FakeQuantizeImpl>(qconfig));
}

at::Tensor PreparedFunctionalImpl::add(const at::Tensor& x, const at::Tensor& y) {
  return run_prepared(*quantizer_, path, Method::kAdd, {x, y}, 0, is_training());
}
at::Tensor PreparedFunctionalImpl::add_relu(const at::Tensor& x, const at::Tensor& y) {
  return run_prepared(*quantizer_, path, Method::kAddReLU, {x, y}, 0, is_training());
}
at::Tensor PreparedFunctionalImpl::sub(const at::Tensor& x, const at::Tensor& y) {
  return run_prepared(*quantizer_, path, Method::kSub, {x, y}, 0, is_training());
}
at::Tensor PreparedFunctionalImpl::mul(const at::Tensor& x, const at::Tensor& y) {
  return run_prepared(*quantizer_, path, Method::kMul, {x, y}, 0, is_training());
}
at::Tensor PreparedFunctionalImpl::cat(const Tensors& tensors, int64_t dim) {
  return run_prepared(*quantizer_, path, Method::kCat, tensors, dim, is_training());
}

std::shared_ptr<PreparedFunctionalImpl> PreparedFunctionalImpl::blank() const {
  return std::make_shared<PreparedFunctionalImpl>(qconfig_);
}

void PreparedFunctionalImpl::rebind() { find_child(*this, "activation_post_process", quantizer_); }

void PreparedFunctionalImpl::pretty_print(std::ostream& stream) const {
  stream << "horizon::nn::PreparedFloatFunctional()";
}

// --- Converted ------------------------------------------------------------------------------

ConvertedFunctionalImpl::ConvertedFunctionalImpl() {
  std::tie(scale_, zero_point_) = register_grid(*this);
}

ConvertedFunctionalImpl::ConvertedFunctionalImpl(const PreparedFunctionalImpl& source)
    : ConvertedFunctionalImpl() {
  take_place(*this, source);
  set_grid(*source.quantizer(), scale_, zero_point_);
}

at::Tensor ConvertedFunctionalImpl::add(const at::Tensor& x, const at::Tensor& y) {
  return run_converted(scale_, zero_point_, path, Method::kAdd, {x, y}, 0);
}
at::Tensor ConvertedFunctionalImpl::add_relu(const at::Tensor& x, const at::Tensor& y) {
  return run_converted(scale_, zero_point_, path, Method::kAddReLU, {x, y}, 0);
}
at::Tensor ConvertedFunctionalImpl::sub(const at::Tensor& x, const at::Tensor& y) {
  return run_converted(scale_, zero_point_, path, Method::kSub, {x, y}, 0);
}
at::Tensor ConvertedFunctionalImpl::mul(const at::Tensor& x, const at::Tensor& y) {
  return run_converted(scale_, zero_point_, path, Method::kMul, {x, y}, 0);
}
at::Tensor ConvertedFunctionalImpl::cat(const Tensors& tensors, int64_t dim) {
  return run_converted(scale_, zero_point_, path, Method::kCat, tensors, dim);
}

std::shared_ptr<ConvertedFunctionalImpl> ConvertedFunctionalImpl::blank() const {
  return std::make_shared<ConvertedFunctionalImpl>();
}

void ConvertedFunctionalImpl::pretty_print(std::ostream& stream) const {
  stream << "horizon::nn::QuantizedFloatFunctional()";
}

}  // namespace horizon::nn
