#include "jit/lower_weights.h"

#include <cmath>
#include <optional>

#include "ops/weights.h"

namespace horizon::jit {
namespace {

// One row for each output channel, which owns contiguous memory.
at::Tensor to_rows(const at::Tensor& weight, int64_t base, int64_t groups) {
  if (base != static_cast<int64_t>(ops::Base::kConvTranspose2d)) {
    return weight.reshape({weight.size(0), -1}).contiguous();
  }
  const int64_t inputs = weight.size(0) / groups, outputs = weight.size(1);
  return weight.reshape({groups, inputs, outputs, -1})
      .transpose(1, 2)
      .reshape({groups * outputs, -1})
      .contiguous();
}

at::Tensor from_rows(const at::Tensor& rows, const at::Tensor& weight, int64_t base,
                     int64_t groups) {
  if (base != static_cast<int64_t>(ops::Base::kConvTranspose2d)) {
    return rows.reshape(weight.sizes());
  }
  const int64_t inputs = weight.size(0) / groups, outputs = weight.size(1);
  return rows.reshape({groups, outputs, inputs, -1}).transpose(1, 2).reshape(weight.sizes());
}

// A multiple of a step was rounded to fp32, and once more where a batch norm was folded.
bool is_multiple(double value, double step) {
  constexpr double kTolerance = 0x1p-22;
  const double code = std::rint(value / step);
  return code >= -128 && code <= 127 &&
         std::abs(value - code * step) <= kTolerance * std::abs(value);
}

bool all_multiples(const double* row, int64_t size, double step) {
  for (int64_t i = 0; i < size; ++i) {
    if (!is_multiple(row[i], step)) return false;
  }
  return true;
}

// What ops::weight_scale keeps to as well.
constexpr double kSmallestScale = 0x1p-23;

// The largest step of which the row holds multiples; nullopt where abs-max / 127 is as good.
std::optional<double> grid_step(const double* row, int64_t size) {
  double largest = 0;
  for (int64_t i = 0; i < size; ++i) {
    if (!std::isfinite(row[i])) return std::nullopt;
    largest = std::max(largest, std::abs(row[i]));
  }
  if (largest == 0 || all_multiples(row, size, largest / 127)) return std::nullopt;
  for (int code = 1; code <= 128; ++code) {
    const double step = largest / code;
    if (step < kSmallestScale) break;
    if (all_multiples(row, size, step)) return step;
  }
  return std::nullopt;
}

}  // namespace

WeightCodes weight_codes(const at::Tensor& weight, int64_t base, int64_t groups) {
  WeightCodes result{ops::weight_scale(weight, base, groups), {}};
  result.codes = ops::quantize_weight(weight, result.scale, base, groups);
  const at::Tensor rows = to_rows(weight, base, groups).to(at::kDouble);
  at::Tensor codes = to_rows(result.codes, base, groups).clone();
  const int64_t size = rows.size(1);
  bool changed = false;
  for (int64_t channel = 0; channel < rows.size(0); ++channel) {
    const double* row = rows.const_data_ptr<double>() + channel * size;
    const auto step = grid_step(row, size);
    if (!step) continue;
    changed = true;
    result.scale.mutable_data_ptr<float>()[channel] = static_cast<float>(*step);
    int8_t* target = codes.mutable_data_ptr<int8_t>() + channel * size;
    for (int64_t i = 0; i < size; ++i) target[i] = static_cast<int8_t>(std::rint(row[i] / *step));
  }
  if (changed) result.codes = from_rows(codes, weight, base, groups);
  return result;
}

}  // namespace horizon::jit
