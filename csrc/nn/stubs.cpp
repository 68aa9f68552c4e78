#include "nn/stubs.h"

#include <ATen/ops/alias.h>

#include <cmath>

#include "nn/grid.h"
#include "nn/state.h"
#include "ops/codes_io.h"

namespace horizon::nn {

QuantStubImpl::QuantStubImpl(double scale, int64_t zero_point)
    : fixed_(FixedGrid{scale, zero_point}) {
  TORCH_CHECK_VALUE(std::isfinite(scale) && scale > 0,
                    "QuantStub: 'scale' must be finite and positive, got ", scale);
}

std::shared_ptr<QuantStubImpl> QuantStubImpl::blank() const {
  return fixed_ ? std::make_shared<QuantStubImpl>(fixed_->scale, fixed_->zero_point)
                : std::make_shared<QuantStubImpl>();
}

void QuantStubImpl::pretty_print(std::ostream& stream) const {
  stream << "horizon::nn::QuantStub(";
  if (fixed_) stream << "scale=" << fixed_->scale << ", zero_point=" << fixed_->zero_point;
  stream << ')';
}

std::shared_ptr<DeQuantStubImpl> DeQuantStubImpl::blank() const {
  return std::make_shared<DeQuantStubImpl>();
}

void DeQuantStubImpl::pretty_print(std::ostream& stream) const {
  stream << "horizon::nn::DeQuantStub()";
}

PreparedQuantStubImpl::PreparedQuantStubImpl(const QConfig& qconfig,
                                             const std::optional<FixedGrid>& fixed)
    : qconfig_(qconfig) {
  if (fixed) qconfig_.observer = ops::Observer::kFixed;
  quantizer_ =
      register_module("activation_post_process", std::make_shared<FakeQuantizeImpl>(qconfig_));
  if (fixed) quantizer_->fix(*fixed);
}

at::Tensor PreparedQuantStubImpl::forward(const at::Tensor& input) {
  check_defined(input, path);
  return named(path, [&] { return quantizer_->quantize(input, path); });
}

std::shared_ptr<PreparedQuantStubImpl> PreparedQuantStubImpl::blank() const {
  return std::make_shared<PreparedQuantStubImpl>(qconfig_);
}

void PreparedQuantStubImpl::rebind() { find_child(*this, "activation_post_process", quantizer_); }

void PreparedQuantStubImpl::pretty_print(std::ostream& stream) const {
  stream << "horizon::nn::PreparedQuantStub()";
}

ConvertedQuantStubImpl::ConvertedQuantStubImpl() {
  std::tie(scale_, zero_point_) = register_grid(*this);
}

ConvertedQuantStubImpl::ConvertedQuantStubImpl(const PreparedQuantStubImpl& source)
    : ConvertedQuantStubImpl() {
  take_place(*this, source);
  set_grid(*source.quantizer(), scale_, zero_point_);
}

at::Tensor ConvertedQuantStubImpl::forward(const at::Tensor& input) {
  check_defined(input, path);
  return named(path, [&] {
    return with_grid(ops::quantize(input.detach(), scale_, zero_point_), GridKind::kCodes, path,
                     scale_, zero_point_);
  });
}

std::shared_ptr<ConvertedQuantStubImpl> ConvertedQuantStubImpl::blank() const {
  return std::make_shared<ConvertedQuantStubImpl>();
}

void ConvertedQuantStubImpl::pretty_print(std::ostream& stream) const {
  stream << "horizon::nn::QuantizedQuantStub()";
}

at::Tensor PreparedDeQuantStubImpl::forward(const at::Tensor& input) {
  const Grid* grid = grid_of(input);
  if (grid == nullptr || grid->kind != GridKind::kHighPrecision) {
    operand_grid(input, path, "input", false);
  }
  output_dtype_ = input.scalar_type();
  return at::alias(input);
}

std::shared_ptr<PreparedDeQuantStubImpl> PreparedDeQuantStubImpl::blank() const {
  auto copy = std::make_shared<PreparedDeQuantStubImpl>();
  copy->output_dtype_ = output_dtype_;
  return copy;
}

void PreparedDeQuantStubImpl::pretty_print(std::ostream& stream) const {
  stream << "horizon::nn::PreparedDeQuantStub()";
}

ConvertedDeQuantStubImpl::ConvertedDeQuantStubImpl(at::ScalarType output_dtype)
    : output_dtype_(output_dtype) {}

at::Tensor ConvertedDeQuantStubImpl::forward(const at::Tensor& input) {
  const Grid* passing = grid_of(input);
  if (passing != nullptr && passing->kind == GridKind::kHighPrecision) return at::alias(input);
  const Grid& grid = operand_grid(input, path, "input", true);
  return ops::dequantize(input, grid.scale, grid.zero_point, output_dtype_);
}

std::shared_ptr<ConvertedDeQuantStubImpl> ConvertedDeQuantStubImpl::blank() const {
  return std::make_shared<ConvertedDeQuantStubImpl>(output_dtype_);
}

void ConvertedDeQuantStubImpl::pretty_print(std::ostream& stream) const {
  stream << "horizon::nn::QuantizedDeQuantStub()";
}

}  // namespace horizon::nn
