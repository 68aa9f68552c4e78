#pragma once

#include <ATen/ExpandUtils.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <tuple>
#include <utility>
#include <vector>

#include "ops/checks.h"
#include "ops/cuda/fused_tensors.h"
#include "ops/cuda/kernels/fused_apply.h"
#include "ops/cuda/kernels/fused_codes.h"
#include "ops/cuda/kernels/fused_range.h"
#include "ops/cuda/kernels/fused_statistics.h"
#include "ops/fused_convolution.h"
#include "ops/fused_integer.h"
#include "ops/fused_shapes.h"
#include "ops/weights.h"

namespace horizon::ops::cuda {

/// `_fused_forward` in the storage type S without synchronization: every number that depends on
/// values stays on the device.
template <typename Runner, typename S>
class ForwardPass {
 public:
  ForwardPass(const FusedArgs& args, const FusedPlan& plan, const Runner& run)
      : args_(args),
        plan_(plan),
        run_(run),
        input_scale_(args.input_scale),
        channels_(fused_channels(args.weight, args.base, args.groups)) {
    if (args.input_zero_point.has_value()) {
      input_zero_point_ = args.input_zero_point->to(at::kInt).contiguous();
    }
  }

  FusedForward run() {
    const at::Tensor& input = args_.input;
    std::tie(result_.scale, result_.zero_point) = empty_qparams(input);
    result_.z = vector<S>(0, input);
    result_.mask = result_.codes = vector<uint8_t>(0, input);
    result_.moments = vector<T>(0, input);
    const bool wants_z = !args_.integer || plan_.save_z || plan_.save_mask || plan_.save_moments;
    const bool on_codes = wants_z && computes_on_codes();
    if (plan_.save_codes || on_codes) encode_input();
    if (args_.integer) {
      finish_range(nullptr, nullptr, 0);
      std::optional<at::Tensor> scale, zero_point;
      if (args_.quantizer.quantizes()) {
        scale = result_.scale;
        zero_point = result_.zero_point;
      }
      result_.output = fused_integer(args_, plan_.channels_last, scale, zero_point);
    }
    if (wants_z) {
      const at::Tensor z = on_codes ? convolve_codes() : convolve_floats();
      if (plan_.save_z) result_.z = z;
      if (args_.batch_stats) check_more_than_one(z);
      finish(z);
    }
    if (drops_batch(args_)) result_.output = result_.output.squeeze(0);
    return std::move(result_);
  }

 private:
  using T = ComputeType<S>;
  using V = T;  // of the vectors

  /// A convolution of codes costs what one of floats does, and TF32 holds codes but not values.
  bool computes_on_codes() const {
    return std::is_same_v<S, float> && args_.input_scale.has_value() && args_.quantize_weight;
  }

  void encode_input() {
    const at::Tensor x = laid_out(args_.input, plan_.channels_last);
    codes_ = at::empty_like(x, x.options().dtype(at::kByte));
    has_nan_ = at::zeros({1}, x.options().dtype(at::kInt));
    EncodeInput<S, T> body;
    body.total = x.numel();
    body.x = x.template const_data_ptr<S>();
    body.scale = input_scale_.data();
    body.zero_point = input_zero_point_.template const_data_ptr<int32_t>();
    body.codes = codes_.template mutable_data_ptr<uint8_t>();
    body.has_nan = has_nan_.template mutable_data_ptr<int32_t>();
    run_(piece_grid((body.total + kPiece - 1) / kPiece), body);
    if (plan_.save_codes) result_.codes = codes_;
  }

  FusedRows rows_of(const at::Tensor& z) const {
    return fused_rows(z.sizes(), channels_, channel_inner(args_.base, plan_.channels_last));
  }

  /// Accumulators, which `normalize` or `scale_accumulators` turn into z.
  at::Tensor convolve_codes() {
    weight_scales_ = weight_scale(args_.weight, args_.base, args_.groups);
    const at::Tensor weights =
        quantize_weight(args_.weight, weight_scales_, args_.base, args_.groups);
    bias_.emplace(args_.bias);
    scale_.input_scale = input_scale_.data();
    scale_.weight_scales = weight_scales_.template const_data_ptr<float>();
    scale_.bias = bias_->data();
    scale_.has_nan = has_nan_.template const_data_ptr<int32_t>();
    return run_.convolve_centred_codes(fused_convolution(args_), batched(codes_, args_.base),
                                       input_zero_point_, weights, plan_.channels_last);
  }

  void scale_accumulators(const at::Tensor& z, const FusedRows& rows) {
    ScaleAccumulators<V> body{rows, z.template mutable_data_ptr<float>(), scale_};
    run_(piece_grid(pieces(rows)), body);
  }

  at::Tensor convolve_floats() const {
    const at::ScalarType type = scalar_type<S>();
    const at::Tensor weight = args_.quantize_weight
                                  ? fake_quantize_weight(args_.weight, args_.base, args_.groups)
                                  : args_.weight;
    std::optional<at::Tensor> bias;
    if (args_.bias.has_value()) bias = args_.bias->to(type);
    return run_.convolve_values(fused_convolution(args_),
                                laid_out(batched(args_.input, args_.base), plan_.channels_last),
                                weight.to(type), bias, plan_.channels_last);
  }

  void check_more_than_one(const at::Tensor& z) const {
    TORCH_CHECK_VALUE(z.numel() != channels_,
                      "Expected more than 1 value per channel when training, got input size "
                      "torch.Size(",
                      shape_text(z), ")");
  }

  bool observes() const { return args_.quantizer.observes() && !args_.integer; }

  /// Whether a pass over z comes before its use: for statistics, or for extremes.
  bool reads_z(const at::Tensor& lo) const { return args_.batch_stats || lo.defined(); }

  /// Everything after the convolution.
  void finish(const at::Tensor& z) {
    const FusedRows rows = rows_of(z);
    std::vector<int64_t> sizes = z.sizes().vec();
    at::Tensor skip;
    if (args_.skip.has_value()) {
      const auto inferred = at::infer_size_dimvector(z.sizes(), args_.skip->sizes());
      sizes.assign(inferred.begin(), inferred.end());
    }
    const bool as_z = z.sizes() == at::IntArrayRef(sizes);
    if (args_.skip.has_value()) {
      skip = laid_out(args_.skip->expand(sizes), plan_.channels_last && as_z);
    }
    at::Tensor lo, hi;
    if (observes() && !skip.defined() && rows.total != 0) {
      lo = vector<T>(channels_, z);
      hi = vector<T>(channels_, z);
    }
    if (weight_scales_.defined() && !reads_z(lo)) scale_accumulators(z, rows);
    if (args_.batch_norm || lo.defined()) normalize(z, rows, lo, hi);

    FusedValue<S, S, T> value;
    value.rows = rows;
    value.z = z.template const_data_ptr<S>();
    value.activation = args_.act();
    if (args_.batch_norm) {
      value.a = a_.template const_data_ptr<T>();
      value.b = b_.template const_data_ptr<T>();
    }
    if (as_z) {
      if (skip.defined()) value.skip = skip.template const_data_ptr<S>();
      end(z, z, sizes, value, lo, hi);
      return;
    }
    // A skip that is larger than z: normalize, broadcast, and go on without channels.
    value.activation = quant::Activation::kNone;
    const at::Tensor wide = at::empty_like(z, z.options().dtype(scalar_type<T>()));
    run_(piece_grid(pieces(rows)),
         FusedApply<S, S, T, T>{value, nullptr, wide.template mutable_data_ptr<T>(), nullptr});
    const at::Tensor expanded = wide.expand(sizes).contiguous();
    FusedValue<T, S, T> flat;
    flat.rows = flat_rows(expanded.numel());
    flat.z = expanded.template const_data_ptr<T>();
    flat.skip = skip.template const_data_ptr<S>();
    flat.activation = args_.act();
    end(z, expanded, sizes, flat, lo, hi);
  }

  /// Statistics of z and what follows from them, for each channel.
  void normalize(const at::Tensor& z, const FusedRows& rows, const at::Tensor& lo,
                 const at::Tensor& hi) {
    const ChannelCut cut = reads_z(lo) ? ChannelCut(rows) : ChannelCut();
    Buffer<Moments<T>> partials(cut.partials(), z);
    if (cut.chunks != 0) reduce(z, cut, partials);
    const Values<V> gamma(args_.bn_weight), beta(args_.bn_bias);
    MovedValues<V> mean(args_.running_mean), variance(args_.running_var);
    NormalizeChannel<T, V> channel;
    channel.channels = channels_;
    channel.activation = args_.act();
    if (args_.batch_norm) {
      a_ = vector<T>(channels_, z);
      b_ = vector<T>(channels_, z);
      channel.batch_norm = true;
      channel.batch_stats = args_.batch_stats;
      channel.gamma = gamma.data();
      channel.beta = beta.data();
      channel.running_mean = mean.data();
      channel.running_var = variance.data();
      channel.eps = args_.eps;
      channel.a = a_.template mutable_data_ptr<T>();
      channel.b = b_.template mutable_data_ptr<T>();
      if (plan_.save_moments) {
        result_.moments = at::empty({2, channels_}, z.options().dtype(scalar_type<T>()));
        channel.moments = result_.moments.template mutable_data_ptr<T>();
      }
    }
    if (args_.batch_stats) {
      channel.moved_mean = mean.moved();
      channel.moved_var = variance.moved();
      channel.momentum = args_.momentum.value_or(0.0);
      channel.cumulative = !args_.momentum.has_value();
      if (args_.num_batches_tracked.has_value()) {
        channel.tracked = args_.num_batches_tracked->template const_data_ptr<int64_t>();
      }
    }
    if (lo.defined()) {
      channel.lo = lo.template mutable_data_ptr<T>();
      channel.hi = hi.template mutable_data_ptr<T>();
    }
    using Body = FinishChannels<Moments<T>, NormalizeChannel<T, V>>;
    run_(Body::grid(channels_), Body{partials.data(), cut.chunks, channels_, channel});
    if (args_.batch_stats && rows.total != 0) {
      mean.write_back();
      variance.write_back();
    }
  }

  /// Moments of z, which takes its place first where z are accumulators.
  void reduce(const at::Tensor& z, const ChannelCut& cut, Buffer<Moments<T>>& partials) {
    if constexpr (std::is_same_v<S, float>) {
      if (weight_scales_.defined()) {
        const ReadAccumulators<V> read{z.template mutable_data_ptr<float>(), scale_};
        return reduce_by(MomentsOfTile<ReadAccumulators<V>, T>{read}, cut, partials);
      }
    }
    const ReadValues<S, T> read{z.template const_data_ptr<S>()};
    reduce_by(MomentsOfTile<ReadValues<S, T>, T>{read}, cut, partials);
  }

  template <typename Tile>
  void reduce_by(const Tile& tile, const ChannelCut& cut, Buffer<Moments<T>>& partials) {
    run_(cut.grid(), ReduceChannels<Moments<T>, Tile>{cut, tile, partials.data()});
  }

  /// Range, grid, output and mask. `z` is what the convolution gave, `work` what `value` reads.
  template <typename Z>
  void end(const at::Tensor& z, const at::Tensor& work, const std::vector<int64_t>& sizes,
           const FusedValue<Z, S, T>& value, at::Tensor lo, at::Tensor hi) {
    const int64_t count = pieces(value.rows);
    if (observes() && !lo.defined() && count != 0) {
      using Extremes = FusedExtremes<Z, S, T>;
      const Grid grid = piece_grid(count, Extremes::kBlocks);
      lo = vector<T>(grid.x, z);
      hi = vector<T>(grid.x, z);
      run_(grid,
           Extremes{value, lo.template mutable_data_ptr<T>(), hi.template mutable_data_ptr<T>()});
    }
    if (lo.defined()) {
      finish_range(lo.template const_data_ptr<T>(), hi.template const_data_ptr<T>(), lo.numel());
    } else {
      finish_range(nullptr, nullptr, 0);
    }
    FusedApply<Z, S, S, T> body{value, nullptr, nullptr, nullptr};
    if (args_.quantizer.quantizes()) body.grid = grid_->data();
    if (plan_.save_mask) {
      result_.mask = vector<uint8_t>(value.rows.mask_bytes(), z);
      body.mask = result_.mask.template mutable_data_ptr<uint8_t>();
    }
    const bool nothing = !args_.batch_norm && !args_.skip.has_value() && args_.activation == 0 &&
                         !args_.quantizer.quantizes();
    if (nothing && !plan_.save_mask) {
      if (!args_.integer) result_.output = z;
      return;
    }
    if (!args_.integer) {
      // In place unless z is kept.
      const bool own = !work.is_same(z) || plan_.save_z;
      result_.output =
          !own ? z : (work.is_same(z) ? at::empty_like(z) : at::empty(sizes, z.options()));
      body.y = result_.output.template mutable_data_ptr<S>();
    }
    if (count != 0) run_(piece_grid(count), body);
  }

  /// Moves the range by extremes on the device, if there are any, and reads the grid.
  void finish_range(const T* lo, const T* hi, int64_t count) {
    const QuantizerArgs& q = args_.quantizer;
    const bool counts = args_.batch_stats && args_.num_batches_tracked.has_value();
    if (!q.observes() && !q.quantizes() && !counts) return;
    FinishRange<T> body;
    body.lo = lo;
    body.hi = hi;
    body.count = count;
    if (q.defined()) {
      body.state = {q.min_val->template mutable_data_ptr<float>(),
                    q.max_val->template mutable_data_ptr<float>(),
                    q.observed->template mutable_data_ptr<int64_t>(),
                    q.scale->template mutable_data_ptr<float>(),
                    q.zero_point->template mutable_data_ptr<int32_t>()};
      body.extremes = static_cast<Observer>(q.observer) == Observer::kMinMax;
      body.averaging_constant = static_cast<float>(q.averaging_constant);
      body.preset = q.grid();
    }
    if (q.quantizes()) {
      grid_.emplace(1, args_.input);
      body.grid = grid_->data();
      result_.scale = at::empty({}, args_.input.options().dtype(at::kFloat));
      result_.zero_point = at::empty({}, args_.input.options().dtype(at::kInt));
      body.out_scale = result_.scale.template mutable_data_ptr<float>();
      body.out_zero_point = result_.zero_point.template mutable_data_ptr<int32_t>();
    }
    if (counts) body.tracked = args_.num_batches_tracked->template mutable_data_ptr<int64_t>();
    run_(Grid{}, body);
    if (counts) bump_version(*args_.num_batches_tracked);
    if (count == 0) return;
    for (const auto* t : {&q.min_val, &q.max_val, &q.observed, &q.scale, &q.zero_point}) {
      bump_version(**t);
    }
  }

  const FusedArgs& args_;
  const FusedPlan& plan_;
  const Runner& run_;
  const Values<float> input_scale_;
  const int64_t channels_;
  FusedForward result_;
  at::Tensor input_zero_point_, codes_, has_nan_, weight_scales_, a_, b_;
  std::optional<Values<V>> bias_;
  AccumulatorScale<V> scale_;  ///< with weight_scales_
  std::optional<Buffer<DeviceGrid<T>>> grid_;
};

template <typename Runner>
FusedForward fused_forward(const FusedArgs& args, const FusedPlan& plan, const Runner& run) {
  return with_float_type(args.input.scalar_type(), [&](auto zero) {
    return ForwardPass<Runner, decltype(zero)>(args, plan, run).run();
  });
}

}  // namespace horizon::ops::cuda
