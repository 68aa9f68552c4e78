#include "nn/unary.h"

#include <ATen/core/grad_mode.h>

#include "nn/grid.h"
#include "nn/state.h"
#include "ops/codes_io.h"
#include "ops/quantize_activation.h"
#include "ops/straight_through.h"

namespace horizon::nn {

PreparedUnaryImpl::PreparedUnaryImpl(UnaryOp op, const QConfig& qconfig)
    : op_(std::move(op)), qconfig_(qconfig) {
  quantizer_ =
      register_module("activation_post_process", std::make_shared<FakeQuantizeImpl>(qconfig));
}

at::Tensor PreparedUnaryImpl::forward(const at::Tensor& input) {
  const Grid& grid = operand_grid(input, path, "input", false);
  return named(path, [&] {
    if (!op_.on_codes || !grid.scale.defined() || is_training() ||
        !quantizer_->fake_quant_enabled || quantizer_->moves()) {
      return quantizer_->quantize(op_.on_floats(input), path);
    }
    const auto [scale, zero_point] = quantizer_->grid();
    const at::Tensor q = ops::quantize(input.detach(), grid.scale, grid.zero_point);
    at::Tensor y = ops::dequantize(op_.on_codes(q, grid.scale, grid.zero_point, scale, zero_point),
                                   scale, zero_point, input.scalar_type());
    if (at::GradMode::is_enabled() && input.requires_grad()) {
      y = ops::straight_through(
          y, std::get<0>(ops::quantize_activation(op_.on_floats(input), quantizer_->args(false))));
    }
    return with_grid(y, GridKind::kGrid, path, scale, zero_point);
  });
}

std::shared_ptr<PreparedUnaryImpl> PreparedUnaryImpl::blank() const {
  return std::make_shared<PreparedUnaryImpl>(op_, qconfig_);
}

void PreparedUnaryImpl::rebind() { find_child(*this, "activation_post_process", quantizer_); }

void PreparedUnaryImpl::pretty_print(std::ostream& stream) const {
  stream << "horizon::nn::Prepared" << op_.text;
}

ConvertedUnaryImpl::ConvertedUnaryImpl(UnaryOp op) : op_(std::move(op)) {
  std::tie(scale_, zero_point_) = register_grid(*this);
}

ConvertedUnaryImpl::ConvertedUnaryImpl(const PreparedUnaryImpl& source)
    : ConvertedUnaryImpl(source.op()) {
  take_place(*this, source);
  set_grid(*source.quantizer(), scale_, zero_point_);
}

at::Tensor ConvertedUnaryImpl::forward(const at::Tensor& input) {
  const Grid& grid = operand_grid(input, path, "input", true);
  return named(path, [&] {
    return with_grid(op_.on_codes(input, grid.scale, grid.zero_point, scale_, zero_point_),
                     GridKind::kCodes, path, scale_, zero_point_);
  });
}

std::shared_ptr<ConvertedUnaryImpl> ConvertedUnaryImpl::blank() const {
  return std::make_shared<ConvertedUnaryImpl>(op_);
}

void ConvertedUnaryImpl::pretty_print(std::ostream& stream) const {
  stream << "horizon::nn::Quantized" << op_.text;
}

PassingImpl::PassingImpl(PassingOp op) : op_(std::move(op)) {}

at::Tensor PassingImpl::forward(const at::Tensor& input) {
  const Grid* grid = grid_of(input);
  return named(path, [&] {
    if (grid == nullptr || grid->kind == GridKind::kHighPrecision) {
      return op_.on_floats(input, is_training());
    }
    const bool codes = grid->kind == GridKind::kCodes;
    operand_grid(input, path, "input", codes);
    const at::Tensor y =
        codes ? op_.on_codes(input, grid->zero_point) : op_.on_floats(input, is_training());
    const bool thins = is_training() && op_.dropout > 0 && op_.dropout < 1;
    const bool rescales = thins && grid->scale.defined();
    return with_grid(y, grid->kind, grid->producer,
                     rescales ? grid->scale / (1.0 - op_.dropout) : grid->scale, grid->zero_point);
  });
}

std::shared_ptr<PassingImpl> PassingImpl::blank() const {
  return std::make_shared<PassingImpl>(op_);
}

void PassingImpl::pretty_print(std::ostream& stream) const {
  stream << "horizon::nn::" << op_.text;
}

}  // namespace horizon::nn
