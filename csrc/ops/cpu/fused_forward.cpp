#include <ATen/ExpandUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <cmath>

#include "ops/checks.h"
#include "ops/cpu/fused_codes.h"
#include "ops/cpu/fused_passes.h"
#include "ops/cpu/fused_scratch.h"
#include "ops/cpu/fused_vectors.h"
#include "ops/fused.h"
#include "ops/fused_convolution.h"
#include "ops/fused_integer.h"
#include "ops/fused_shapes.h"
#include "ops/weights.h"

namespace horizon::ops {
namespace {

using torch::jit::Stack;

at::Tensor none(at::ScalarType type) { return at::empty({0}, at::device(at::kCPU).dtype(type)); }

at::ScalarType compute_type(at::ScalarType type) {
  return type == at::kDouble ? at::kDouble : at::kFloat;
}

/// y = a z + b per channel, and what describes the batch norm to backward.
struct Normalization {
  std::vector<double> a, b, mean, inv_std;
};

Normalization normalization(const FusedArgs& args, int64_t channels, std::vector<double> mean,
                            const std::vector<double>& variance) {
  const auto gamma = cpu::read_vector(args.bn_weight, channels, 1);
  const auto beta = cpu::read_vector(args.bn_bias, channels, 0);
  Normalization n;
  n.mean = std::move(mean);
  for (auto* values : {&n.a, &n.b, &n.inv_std}) values->reserve(gamma.size());
  for (size_t c = 0; c < gamma.size(); ++c) {
    n.inv_std.push_back(1.0 / std::sqrt(variance[c] + args.eps));
    n.a.push_back(gamma[c] * n.inv_std[c]);
    n.b.push_back(beta[c] - n.mean[c] * n.a[c]);
  }
  return n;
}

/// The map that keeps every value and the sign of zero.
Normalization identity(int64_t channels) {
  Normalization n;
  n.a.assign(static_cast<size_t>(channels), 1.0);
  n.b.assign(static_cast<size_t>(channels), -0.0);
  return n;
}

void check_batch(const at::Tensor& z, int64_t channels) {
  TORCH_CHECK_VALUE(z.numel() != channels,
                    "Expected more than 1 value per channel when training, got input size "
                    "torch.Size(",
                    shape_text(z), ")");
}

/// Moves the running statistics as nn.BatchNorm2d does.
template <typename T>
void update_running(const FusedArgs& args, const cpu::ChannelMoments<T>& moments, double count) {
  std::optional<double> momentum = args.momentum;
  if (args.num_batches_tracked.has_value()) {
    const at::Tensor& tracked = *args.num_batches_tracked;
    const int64_t batches = ++*tracked.mutable_data_ptr<int64_t>();
    if (!tracked.is_inference()) tracked.unsafeGetTensorImpl()->bump_version();
    if (!momentum.has_value()) momentum = 1.0 / static_cast<double>(batches);
  }
  if (!args.running_mean.has_value() || count == 0) return;
  const double m = momentum.value_or(0.0);
  const auto channels = static_cast<int64_t>(moments.mean.size());
  auto mean = cpu::read_vector(args.running_mean, channels, 0);
  auto variance = cpu::read_vector(args.running_var, channels, 1);
  for (size_t c = 0; c < mean.size(); ++c) {
    mean[c] = m * moments.mean[c] + (1 - m) * mean[c];
    variance[c] = m * (moments.m2[c] / (count - 1)) + (1 - m) * variance[c];
  }
  cpu::write_vector(*args.running_mean, mean);
  cpu::write_vector(*args.running_var, variance);
}

/// Extremes of act(a z + b) from those of z: the map is monotone in every channel, with the same
/// fma as the kernel's.
template <typename T>
std::pair<T, T> mapped_range(const cpu::ChannelMoments<T>& moments, const Normalization& n,
                             quant::Activation act) {
  std::pair<T, T> range{std::numeric_limits<T>::infinity(), -std::numeric_limits<T>::infinity()};
  for (size_t c = 0; c < n.a.size(); ++c) {
    for (const T z : {moments.lo[c], moments.hi[c]}) {
      const T y =
          quant::activate(std::fma(static_cast<T>(n.a[c]), z, static_cast<T>(n.b[c])), act, T(6));
      if (y < range.first || y != y) range.first = y;
      if (y > range.second || y != y) range.second = y;
    }
  }
  return range;
}

template <typename T>
cpu::FusedGrid<T> grid_of(const GridValues& grid) {
  return {true,
          static_cast<T>(grid.scale),
          static_cast<T>(1.0F / grid.scale),
          static_cast<T>(grid.zero_point),
          static_cast<T>(grid.quant_min),
          static_cast<T>(grid.quant_max)};
}

/// Everything after the convolution, in the compute type T.
template <typename T>
class Epilogue {
 public:
  Epilogue(const FusedArgs& args, const FusedPlan& plan, bool simulated)
      : args_(args),
        plan_(plan),
        simulated_(simulated),
        type_(c10::CppTypeToScalarType<T>::value) {}

  /// `z` is dense in its layout. Fills output (unless simulated only), qparams, mask, moments.
  void run(const at::Tensor& z, FusedForward& result) {
    const at::Tensor work = z.to(type_);
    rows_ = fused_rows(z.sizes(), fused_channels(args_.weight, args_.base, args_.groups),
                       channel_inner(args_.base, plan_.channels_last));
    const T* data = work.const_data_ptr<T>();
    const bool observes = args_.quantizer.observes() && !simulated_;
    const bool by_channel = observes && !args_.skip.has_value() && rows_.total != 0;
    cpu::ChannelMoments<T> moments;
    if (args_.batch_stats) check_batch(z, rows_.channels);
    if (args_.batch_stats || by_channel) {
      moments = cpu::channel_moments(data, rows_, args_.batch_stats);
    }
    const double count = static_cast<double>(rows_.total / rows_.channels);
    const Normalization n = choose(moments, count);
    prepare_skip(z);

    FusedRows out_rows = rows_;
    cpu::FusedApply<T> apply;
    const auto a = cpu::coefficients<T>(n.a, rows_);
    const auto b = cpu::coefficients<T>(n.b, rows_);
    apply.rows = rows_;
    apply.z = data;
    apply.a = a.data();
    apply.b = b.data();
    // A skip that is larger than z: normalize, broadcast, and go on without channels.
    at::Tensor expanded;
    std::vector<T> ones, zeros;
    if (!as_z_) {
      const FusedRows flat = flat_rows(c10::multiply_integers(out_sizes_));
      ones.assign(static_cast<size_t>(flat.length), T(1));
      zeros.assign(static_cast<size_t>(flat.length), T(-0.0));
      expanded = at::empty_like(work);
      apply.y = expanded.mutable_data_ptr<T>();
      cpu::apply_all(apply);
      expanded = expanded.expand(out_sizes_).contiguous();
      apply.rows = out_rows = flat;
      apply.z = expanded.const_data_ptr<T>();
      apply.a = ones.data();
      apply.b = zeros.data();
    }
    apply.activation = args_.act();
    if (skip_.defined()) apply.skip = skip_.const_data_ptr<T>();

    if (observes && out_rows.total != 0) {
      const auto range = by_channel ? mapped_range(moments, n, args_.act()) : cpu::range_all(apply);
      observe_range(args_.quantizer, static_cast<double>(range.first),
                    static_cast<double>(range.second), "output");
    }
    if (args_.quantizer.quantizes()) {
      const GridValues grid = read_grid("fused", args_.quantizer);
      apply.grid = grid_of<T>(grid);
      std::tie(result.scale, result.zero_point) = returned_qparams(grid);
    }
    // Last of all that can fail, so that a refused batch leaves the statistics alone.
    if (args_.batch_stats) update_running(args_, moments, count);
    if (plan_.save_moments) result.moments = pack_moments(n);
    if (plan_.save_mask) {
      result.mask = at::empty({out_rows.mask_bytes()}, at::device(at::kCPU).dtype(at::kByte));
      apply.mask = result.mask.template mutable_data_ptr<uint8_t>();
    }
    write(z, work, expanded, apply, result);
  }

 private:
  Normalization choose(const cpu::ChannelMoments<T>& moments, double count) const {
    const int64_t channels = rows_.channels;
    if (!args_.batch_norm) return identity(channels);
    if (!args_.batch_stats) {
      return normalization(args_, channels, cpu::read_vector(args_.running_mean, channels, 0),
                           cpu::read_vector(args_.running_var, channels, 1));
    }
    std::vector<double> variance = moments.m2;
    for (double& v : variance) v = count == 0 ? 0 : v / count;
    return normalization(args_, channels, moments.mean, variance);
  }

  void prepare_skip(const at::Tensor& z) {
    out_sizes_ = z.sizes().vec();
    if (!args_.skip.has_value()) return;
    const at::Tensor& skip = *args_.skip;
    const auto sizes = at::infer_size_dimvector(z.sizes(), skip.sizes());
    out_sizes_ = std::vector<int64_t>(sizes.begin(), sizes.end());
    as_z_ = z.sizes() == at::IntArrayRef(out_sizes_);
    skip_ = laid_out(skip.expand(out_sizes_), plan_.channels_last && as_z_).to(type_);
  }

  static at::Tensor pack_moments(const Normalization& n) {
    std::vector<double> both = n.mean;
    both.insert(both.end(), n.inv_std.begin(), n.inv_std.end());
    return cpu::make_vector(both, c10::CppTypeToScalarType<T>::value)
        .view({2, static_cast<int64_t>(n.mean.size())});
  }

  void write(const at::Tensor& z, const at::Tensor& work, const at::Tensor& expanded,
             cpu::FusedApply<T>& apply, FusedForward& result) {
    const bool nothing = !args_.batch_norm && !args_.skip.has_value() && args_.activation == 0 &&
                         !args_.quantizer.quantizes();
    if (nothing) {
      result.output = z;
      return;
    }
    // In place unless z is kept; a copy in the compute type may always be overwritten.
    at::Tensor y = expanded.defined() ? expanded : work;
    if (!expanded.defined() && plan_.save_z && work.is_same(z)) y = at::empty_like(work);
    apply.y = y.mutable_data_ptr<T>();
    if (apply.rows.total != 0) cpu::apply_all(apply);
    if (!simulated_) result.output = y.to(z.scalar_type());
  }

  const FusedArgs& args_;
  const FusedPlan& plan_;
  const bool simulated_;
  const at::ScalarType type_;
  FusedRows rows_;
  std::vector<int64_t> out_sizes_;
  bool as_z_ = true;
  at::Tensor skip_;
};

at::Tensor convolve_floats(const FusedArgs& args, bool channels_last) {
  const at::Tensor input = laid_out(batched(args.input, args.base), channels_last);
  const at::Tensor weight =
      args.quantize_weight ? scratch_weight(args.weight, args.base, args.groups) : args.weight;
  const at::ScalarType type = args.input.scalar_type();
  std::optional<at::Tensor> bias;
  if (args.bias.has_value()) bias = args.bias->to(type);
  return convolve(fused_convolution(args), input, weight.to(type), bias, channels_last);
}

FusedForward forward(const FusedArgs& args, const FusedPlan& plan) {
  const at::ScalarType type = args.input.scalar_type();
  const at::ScalarType statistics = compute_type(type);
  FusedForward result;
  std::tie(result.scale, result.zero_point) = empty_qparams(args.input);
  result.z = none(type);
  result.mask = none(at::kByte);
  result.codes = none(at::kByte);
  result.moments = none(statistics);
  check_input_grid(args);
  if (plan.save_z || plan.save_codes) release_scratch();
  const bool on_codes = computes_on_codes(args);
  InputCodes input_codes{};
  if (plan.save_codes || on_codes) {
    input_codes = encode_input(args, plan.channels_last);
    if (plan.save_codes) result.codes = input_codes.codes;
  }
  if (args.integer) {
    std::optional<at::Tensor> scale, zero_point;
    if (args.quantizer.quantizes()) {
      std::tie(result.scale, result.zero_point) =
          returned_qparams(read_grid("fused", args.quantizer));
      scale = result.scale;
      zero_point = result.zero_point;
    }
    result.output = fused_integer(args, plan.channels_last, scale, zero_point);
  }
  if (!args.integer || plan.save_z || plan.save_mask || plan.save_moments) {
    at::Tensor z;
    if (on_codes && input_codes.complete) {
      z = convolve_codes(args, input_codes.codes, plan.channels_last);
    }
    if (!z.defined()) z = convolve_floats(args, plan.channels_last);
    if (plan.save_z) result.z = z;
    if (statistics == at::kDouble) {
      Epilogue<double>(args, plan, args.integer).run(z, result);
    } else {
      Epilogue<float>(args, plan, args.integer).run(z, result);
    }
  }
  if (drops_batch(args)) result.output = result.output.squeeze(0);
  return result;
}

void fused_cpu(const c10::OperatorHandle&, Stack* stack) {
  const FusedArgs args = pop_fused_args(*stack);
  check_fused(args);
  FusedPlan plan;
  plan.channels_last = fused_channels_last(args);
  const FusedForward r = call_fused_forward(args, plan);
  torch::jit::push(*stack, r.output, r.scale, r.zero_point);
}

void fused_forward_cpu(const c10::OperatorHandle&, Stack* stack) {
  const auto [args, plan] = pop_fused_forward(*stack);
  check_fused(args);
  push_results(*stack, forward(args, plan));
}

}  // namespace

TORCH_LIBRARY_IMPL(horizon, CPU, m) {
  m.impl("fused", torch::CppFunction::makeFromBoxedFunction<&fused_cpu>());
  m.impl("_fused_forward", torch::CppFunction::makeFromBoxedFunction<&fused_forward_cpu>());
}

}  // namespace horizon::ops
