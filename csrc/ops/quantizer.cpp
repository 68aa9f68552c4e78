#include "ops/quantizer.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <cmath>

#include "ops/checks.h"
#include "quant/observe.h"

namespace horizon::ops {
namespace {

void check_state(const char* op, const char* name, const at::Tensor& tensor, at::ScalarType type,
                 const at::Tensor& reference) {
  check_dtype(op, name, tensor, type);
  check_scalar(op, name, tensor);
  check_device(op, name, tensor, reference, "x");
}

template <typename T>
T* pointer(const std::optional<at::Tensor>& tensor) {
  return tensor->mutable_data_ptr<T>();
}

// Writing through a pointer is invisible to autograd's version counters.
void bump_version(const std::optional<at::Tensor>& tensor) {
  tensor->unsafeGetTensorImpl()->bump_version();
}

}  // namespace

void check_quantizer(const char* op, const QuantizerArgs& q, const at::Tensor& reference) {
  const auto given = [](const std::optional<at::Tensor>& t) {
    return t.has_value() && t->defined();
  };
  const int count = given(q.min_val) + given(q.max_val) + given(q.observed) + given(q.scale) +
                    given(q.zero_point);
  HORIZON_CHECK_VALUE(count == 0 || count == 5, op, "min_val",
                      "given with max_val, observed, scale and zero_point, or none of the five",
                      c10::str(count, " of them"));
  if (count == 0) return;
  check_state(op, "min_val", *q.min_val, at::kFloat, reference);
  check_state(op, "max_val", *q.max_val, at::kFloat, reference);
  check_state(op, "observed", *q.observed, at::kLong, reference);
  check_state(op, "scale", *q.scale, at::kFloat, reference);
  check_state(op, "zero_point", *q.zero_point, at::kInt, reference);
  HORIZON_CHECK_VALUE(q.preset >= 0 && q.preset < quant::kPresetCount, op, "preset",
                      "0 (horizon), 1 (tensorrt) or 2 (x86)", q.preset);
  HORIZON_CHECK_VALUE(q.observer >= 0 && q.observer <= 2, op, "observer",
                      "0 (moving average), 1 (minimum and maximum) or 2 (fixed)", q.observer);
  HORIZON_CHECK_VALUE(q.averaging_constant > 0 && q.averaging_constant <= 1, op,
                      "averaging_constant", "in (0, 1]", q.averaging_constant);
}

void observe_range(const QuantizerArgs& q, double lo_value, double hi_value, const char* argument) {
  TORCH_INTERNAL_ASSERT(q.observes());
  const auto lo = static_cast<float>(lo_value);
  const auto hi = static_cast<float>(hi_value);
  if (!quant::is_finite_range(lo, hi)) {
    const float got = std::isnan(lo) || std::isnan(hi) ? std::nanf("") : std::isinf(lo) ? lo : hi;
    HORIZON_CHECK_VALUE(q.skip_nonfinite, "observe", argument, "finite",
                        std::isnan(got) ? "nan"
                        : got > 0       ? "inf"
                                        : "-inf");
    TORCH_WARN_ONCE("observe: a batch that is not finite was skipped; its range stays");
    return;
  }
  const quant::ObserverState state{pointer<float>(q.min_val), pointer<float>(q.max_val),
                                   pointer<int64_t>(q.observed), pointer<float>(q.scale),
                                   pointer<int32_t>(q.zero_point)};
  // A range that was spoilt outside (a loaded file) would spoil the scale, after it had moved.
  if (*state.observed != 0 && !quant::is_finite_range(*state.min_val, *state.max_val)) {
    HORIZON_CHECK_VALUE(std::isfinite(*state.min_val), "observe", "min_val", "finite",
                        *state.min_val);
    HORIZON_CHECK_VALUE(false, "observe", "max_val", "finite", *state.max_val);
  }
  quant::move_range(state, lo, hi, static_cast<Observer>(q.observer) == Observer::kMinMax,
                    static_cast<float>(q.averaging_constant), q.grid());
  for (const auto* tensor : {&q.min_val, &q.max_val, &q.observed, &q.scale, &q.zero_point}) {
    bump_version(*tensor);
  }
}

GridValues read_grid(const char* op, const QuantizerArgs& q) {
  GridValues grid{};
  grid.quant_min = quant::quant_min(q.grid());
  grid.quant_max = quant::quant_max(q.grid());
  grid.scale = read_scale(op, "scale", *q.scale);
  grid.zero_point =
      read_zero_point(op, "zero_point", *q.zero_point, grid.quant_min, grid.quant_max);
  grid.stored_zero_point = quant::stored_zero_point(grid.zero_point, q.grid());
  return grid;
}

std::tuple<at::Tensor, at::Tensor> returned_qparams(const GridValues& grid) {
  at::Tensor scale = at::empty({}, at::kFloat);
  at::Tensor zero_point = at::empty({}, at::kInt);
  *scale.mutable_data_ptr<float>() = grid.scale;
  *zero_point.mutable_data_ptr<int32_t>() = grid.stored_zero_point;
  return {scale, zero_point};
}

std::tuple<at::Tensor, at::Tensor> empty_qparams(const at::Tensor& like) {
  const auto options = at::TensorOptions().device(like.device());
  return {at::empty({0}, options.dtype(at::kFloat)), at::empty({0}, options.dtype(at::kInt))};
}

std::tuple<at::Tensor, at::Tensor> meta_qparams(const QuantizerArgs& q, const at::Tensor& like) {
  if (!q.quantizes()) return empty_qparams(like);
  const auto options = at::TensorOptions().device(like.device());
  return {at::empty({}, options.dtype(at::kFloat)), at::empty({}, options.dtype(at::kInt))};
}

}  // namespace horizon::ops
