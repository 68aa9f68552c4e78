#pragma once

#include <ATen/ops/empty.h>

#include <optional>
#include <tuple>

#include "ops/checks.h"
#include "ops/cpu/dense.h"
#include "ops/cuda/fused_tensors.h"
#include "ops/cuda/kernels/fused_apply.h"
#include "ops/cuda/kernels/fused_range.h"
#include "ops/fused_shapes.h"
#include "ops/observe.h"
#include "ops/quantize_activation.h"

// Quantizers of single tensors: templates of a runner, as in quantized_maps.h. What the training op
// does after its last activation, without anything before.
namespace horizon::ops::cuda {

/// x through the quantizer q: range, grid, values and mask as asked for; nothing is checked.
template <typename Runner, typename S>
class QuantizerPass {
 public:
  QuantizerPass(const Runner& run, const QuantizerArgs& q, const at::Tensor& dense)
      : run_(run), q_(q), grid_(1, dense), count_(dense.numel()) {
    value_.rows = flat_rows(count_);
    value_.z = dense.template const_data_ptr<S>();
  }

  /// Moves the range if q observes; the grid, its scale and its stored zero point follow.
  void move_range(const at::Tensor& like) {
    FinishRange<T> body;
    at::Tensor lo, hi;
    const bool observes = q_.observes() && count_ != 0;
    if (observes) {
      using Extremes = FusedExtremes<S, S, T>;
      const Grid grid = piece_grid(pieces(value_.rows), Extremes::kBlocks);
      lo = vector<T>(grid.x, like);
      hi = vector<T>(grid.x, like);
      run_(grid,
           Extremes{value_, lo.template mutable_data_ptr<T>(), hi.template mutable_data_ptr<T>()});
      body.lo = lo.template const_data_ptr<T>();
      body.hi = hi.template const_data_ptr<T>();
      body.count = lo.numel();
    }
    body.state = {q_.min_val->template mutable_data_ptr<float>(),
                  q_.max_val->template mutable_data_ptr<float>(),
                  q_.observed->template mutable_data_ptr<int64_t>(),
                  q_.scale->template mutable_data_ptr<float>(),
                  q_.zero_point->template mutable_data_ptr<int32_t>()};
    body.extremes = static_cast<Observer>(q_.observer) == Observer::kMinMax;
    body.averaging_constant = static_cast<float>(q_.averaging_constant);
    body.preset = q_.grid();
    if (q_.quantizes()) {
      scale_ = at::empty({}, like.options().dtype(at::kFloat));
      zero_point_ = at::empty({}, like.options().dtype(at::kInt));
      body.grid = grid_.data();
      body.out_scale = scale_.template mutable_data_ptr<float>();
      body.out_zero_point = zero_point_.template mutable_data_ptr<int32_t>();
    }
    run_(Grid{}, body);
    if (!observes) return;
    for (const auto* t : {&q_.min_val, &q_.max_val, &q_.observed, &q_.scale, &q_.zero_point}) {
      bump_version(**t);
    }
  }

  /// After `move_range`: values on the grid into y, and the gradient's mask if it has any bytes.
  void apply(const at::Tensor& y, const at::Tensor& mask) {
    FusedApply<S, S, S, T> body{value_, grid_.data(), y.template mutable_data_ptr<S>(), nullptr};
    if (mask.numel() != 0) body.mask = mask.template mutable_data_ptr<uint8_t>();
    run_(piece_grid(pieces(value_.rows)), body);
  }

  at::Tensor scale() const { return scale_; }
  at::Tensor zero_point() const { return zero_point_; }

 private:
  using T = ComputeType<S>;

  const Runner& run_;
  const QuantizerArgs& q_;
  Buffer<DeviceGrid<T>> grid_;
  const int64_t count_;
  FusedValue<S, S, T> value_;
  at::Tensor scale_, zero_point_;
};

/// Moves the range of q by x, which q observes.
template <typename Runner>
void observe_values(const Runner& runner, const QuantizerArgs& q, const at::Tensor& x) {
  const at::Tensor source = cpu::dense_input(x);
  with_float_type(x.scalar_type(), [&](auto zero) {
    QuantizerPass<Runner, decltype(zero)>(runner, q, source).move_range(source);
  });
}

template <typename Runner>
void observe_(const Runner& runner, const at::Tensor& x, const at::Tensor& min_val,
              const at::Tensor& max_val, const at::Tensor& observed, const at::Tensor& scale,
              const at::Tensor& zero_point, int64_t preset, int64_t observer,
              double averaging_constant, bool skip_nonfinite) {
  check_float("observe_", "x", x);
  const QuantizerArgs q{min_val,    max_val, observed,      scale,
                        zero_point, preset,  observer,      averaging_constant,
                        true,       false,   skip_nonfinite};
  check_quantizer("observe_", q, x);
  if (x.numel() != 0 && q.observes()) observe_values(runner, q, x);
}

template <typename Runner>
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> quantize_values(const Runner& runner,
                                                                           const at::Tensor& x,
                                                                           const QuantizerArgs& q,
                                                                           bool with_mask) {
  constexpr const char* kOp = "quantize_activation";
  check_float(kOp, "x", x);
  check_quantizer(kOp, q, x);
  const at::Tensor mask = at::empty({with_mask && q.quantizes() ? (x.numel() + 7) / 8 : 0},
                                    x.options().dtype(at::kByte));
  if (!q.quantizes()) {
    if (q.observes() && x.numel() != 0) observe_values(runner, q, x);
    auto [scale, zero_point] = empty_qparams(x);
    return {x.clone(at::MemoryFormat::Preserve), scale, zero_point, mask};
  }
  const auto copy = cpu::dense_result(x);
  return with_float_type(x.scalar_type(), [&](auto zero) {
    QuantizerPass<Runner, decltype(zero)> pass(runner, q, copy.source);
    pass.move_range(copy.source);
    pass.apply(copy.result, mask);
    return std::tuple(copy.result, pass.scale(), pass.zero_point(), mask);
  });
}

using OptionalTensor = std::optional<at::Tensor>;

template <typename Runner>
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> quantize_activation_mask(
    const Runner& runner, const at::Tensor& x, const OptionalTensor& min_val,
    const OptionalTensor& max_val, const OptionalTensor& observed, const OptionalTensor& scale,
    const OptionalTensor& zero_point, int64_t preset, int64_t observer, double averaging_constant,
    bool observe, bool fake_quantize, bool skip_nonfinite) {
  return quantize_values(runner, x,
                         {min_val, max_val, observed, scale, zero_point, preset, observer,
                          averaging_constant, observe, fake_quantize, skip_nonfinite},
                         true);
}

template <typename Runner>
std::tuple<at::Tensor, at::Tensor, at::Tensor> quantize_activation(
    const Runner& runner, const at::Tensor& x, const OptionalTensor& min_val,
    const OptionalTensor& max_val, const OptionalTensor& observed, const OptionalTensor& scale,
    const OptionalTensor& zero_point, int64_t preset, int64_t observer, double averaging_constant,
    bool observe, bool fake_quantize, bool skip_nonfinite) {
  const auto [y, s, z, mask] =
      quantize_values(runner, x,
                      {min_val, max_val, observed, scale, zero_point, preset, observer,
                       averaging_constant, observe, fake_quantize, skip_nonfinite},
                      false);
  return {y, s, z};
}

}  // namespace horizon::ops::cuda
