#include "nn/fake_quantize.h"

#include <ATen/ops/alias.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include "nn/grid.h"
#include "ops/quantize_activation.h"

namespace horizon::nn {
namespace {

const char* preset_name(quant::Preset preset) {
  switch (preset) {
    case quant::Preset::kTensorrt:
      return "tensorrt";
    case quant::Preset::kX86:
      return "x86";
    default:
      return "horizon";
  }
}

}  // namespace

FakeQuantizeImpl::FakeQuantizeImpl(const QConfig& qconfig) : qconfig_(qconfig) {
  const auto preset = static_cast<int32_t>(qconfig.preset);
  TORCH_CHECK_VALUE(preset >= 0 && preset < quant::kPresetCount,
                    "QConfig: 'preset' must be kHorizon, kTensorrt or kX86, got ", preset);
  TORCH_CHECK_VALUE(qconfig.averaging_constant > 0 && qconfig.averaging_constant <= 1,
                    "QConfig: 'averaging_constant' must be in (0, 1], got ",
                    qconfig.averaging_constant);
  min_val = register_buffer("min_val", at::zeros({}, at::kFloat));
  max_val = register_buffer("max_val", at::zeros({}, at::kFloat));
  observed = register_buffer("observed", at::zeros({}, at::kLong));
  scale = register_buffer("scale", at::ones({}, at::kFloat));
  zero_point = register_buffer("zero_point", at::zeros({}, at::kInt));
}

at::Tensor FakeQuantizeImpl::forward(const at::Tensor& input) {
  return quantize(input, path.empty() ? "FakeQuantize" : path);
}

at::Tensor FakeQuantizeImpl::quantize(const at::Tensor& input, const std::string& producer) {
  const bool observe = moves();
  if (!fake_quant_enabled && !observe) {
    return with_grid(at::alias(input), GridKind::kOff, producer);
  }
  auto [y, s, z] = ops::quantize_activation(input, args(observe));
  if (!fake_quant_enabled) return with_grid(y, GridKind::kOff, producer);
  return with_grid(y, GridKind::kGrid, producer, s, z);
}

bool FakeQuantizeImpl::moves() const { return observer_enabled && (is_training() || calibrating); }

bool FakeQuantizeImpl::never_observed() const {
  return qconfig_.observer != ops::Observer::kFixed && observed.item<int64_t>() == 0;
}

ops::QuantizerArgs FakeQuantizeImpl::args(bool observe) const {
  ops::QuantizerArgs q{min_val, max_val, observed, scale, zero_point};
  q.preset = static_cast<int64_t>(qconfig_.preset);
  q.observer = static_cast<int64_t>(qconfig_.observer);
  q.averaging_constant = qconfig_.averaging_constant;
  q.observe = observe;
  q.fake_quantize = fake_quant_enabled;
  q.skip_nonfinite = qconfig_.skip_nonfinite;
  return q;
}

std::tuple<at::Tensor, at::Tensor> FakeQuantizeImpl::grid() const {
  return {scale.clone(), zero_point - quant::quant_min(qconfig_.preset)};
}

void FakeQuantizeImpl::fix(const FixedGrid& grid) {
  const bool affine = qconfig_.preset == quant::Preset::kX86;
  TORCH_CHECK_VALUE(affine || grid.zero_point == 0,
                    "FakeQuantize: 'zero_point' must be 0 on the symmetric grid of ",
                    preset_name(qconfig_.preset), ", got ", grid.zero_point);
  TORCH_CHECK_VALUE(grid.zero_point >= 0 && grid.zero_point <= 255,
                    "FakeQuantize: 'zero_point' must be in [0, 255], got ", grid.zero_point);
  scale.fill_(grid.scale);
  zero_point.fill_(grid.zero_point);
}

void FakeQuantizeImpl::set_state(FakeQuantState state) {
  fake_quant_enabled = state != FakeQuantState::kCalibration;
  observer_enabled = state != FakeQuantState::kValidation;
  calibrating = state == FakeQuantState::kCalibration;
}

std::shared_ptr<FakeQuantizeImpl> FakeQuantizeImpl::blank() const {
  auto copy = std::make_shared<FakeQuantizeImpl>(qconfig_);
  copy->fake_quant_enabled = fake_quant_enabled;
  copy->observer_enabled = observer_enabled;
  copy->calibrating = calibrating;
  return copy;
}

void FakeQuantizeImpl::pretty_print(std::ostream& stream) const {
  stream << "horizon::nn::FakeQuantize(" << preset_name(qconfig_.preset)
         << ", fake_quant=" << std::boolalpha << fake_quant_enabled
         << ", observe=" << observer_enabled << ')';
}

}  // namespace horizon::nn
