#pragma once

#include <ATen/ExpandUtils.h>
#include <ATen/ops/empty_like.h>

#include <tuple>
#include <vector>

#include "ops/codes_io.h"
#include "ops/cuda/fused_tensors.h"
#include "ops/cuda/kernels/fused_gradient.h"
#include "ops/fused_convolution.h"
#include "ops/fused_shapes.h"
#include "ops/weights.h"

namespace horizon::ops::cuda {

/// `_fused_backward` for gradients of the storage type S, without synchronization. The gradients of
/// input and weight come from at::convolution_backward, as the user's settings allow (TF32,
/// deterministic algorithms).
template <typename Runner, typename S>
class BackwardPass {
 public:
  BackwardPass(const FusedBackwardArgs& args, const Runner& run) : args_(args), run_(run) {
    for (const auto& size : fused_z_sizes(args)) z_sizes_.push_back(size.expect_int());
    channels_ = fused_channels(args.weight, args.base, args.groups);
    rows_ = fused_rows(z_sizes_, channels_, channel_inner(args.base, args.channels_last));
  }

  FusedGradients run() {
    const at::Tensor grad_z = gradient_of_z();
    if (grad_z.defined()) convolve_back(grad_z);
    for (size_t i = 0; i < result_.size(); ++i) {
      if (args_.needs[i] && result_[i].defined()) continue;
      const bool is_vector = i == kBias || i == kBnWeight || i == kBnBias;
      result_[i] = is_vector ? vector<T>(0, args_.grad) : vector<S>(0, args_.grad);
    }
    return result_;
  }

 private:
  using T = ComputeType<S>;
  using V = T;  // of the vectors
  enum Need : size_t { kInput, kWeight, kBias, kBnWeight, kBnBias, kSkip };

  const uint8_t* mask() const {
    return args_.mask.has_value() ? args_.mask->template const_data_ptr<uint8_t>() : nullptr;
  }

  /// With the batch dimension of z, dense in z's layout if it has its sizes.
  at::Tensor align(const at::Tensor& grad) const {
    const at::Tensor g = batched(grad, args_.base);
    return laid_out(g, args_.channels_last && g.sizes() == at::IntArrayRef(z_sizes_));
  }

  /// Undefined if no gradient of a convolution is needed.
  at::Tensor gradient_of_z() {
    const at::Tensor grad = align(args_.grad);
    if (grad.sizes() == at::IntArrayRef(z_sizes_)) return chain<S>(grad, mask());
    // The skip was larger than z: mask first, then sum over what was broadcast.
    at::Tensor g = grad.to(scalar_type<T>());
    if (args_.mask.has_value()) {
      g = at::empty_like(grad, grad.options().dtype(scalar_type<T>()));
      FusedGradient<S, S, T, T> body;
      body.rows = flat_rows(grad.numel());
      body.grad = grad.template const_data_ptr<S>();
      body.mask = mask();
      body.grad_z = g.template mutable_data_ptr<T>();
      run_(piece_grid(pieces(body.rows)), body);
      if (args_.needs[kSkip]) result_[kSkip] = skip_gradient(g);
    }
    return chain<T>(align(at::sum_to(g, z_sizes_)), nullptr);
  }

  at::Tensor skip_gradient(const at::Tensor& g) const {
    std::vector<int64_t> sizes;
    for (const auto& size : args_.skip_size) sizes.push_back(size.expect_int());
    return laid_out(at::sum_to(g, at::IntArrayRef(sizes)).to(scalar_type<S>()),
                    args_.channels_last);
  }

  /// From the gradient of act(bn(z)) on, in G.
  template <typename G>
  at::Tensor chain(const at::Tensor& grad, const uint8_t* bits) {
    const bool wants_z = args_.needs[kInput] || args_.needs[kWeight];
    const bool wants_skip = args_.needs[kSkip] && !result_[kSkip].defined();
    FusedGradient<G, S, S, T> body;
    body.rows = rows_;
    body.grad = grad.template const_data_ptr<G>();
    body.mask = bits;
    vectors(body, wants_z);
    if (!wants_z && !wants_skip) return {};
    if (!args_.batch_norm && bits == nullptr && !wants_skip) return grad.to(scalar_type<S>());
    at::Tensor grad_z, grad_skip;
    const auto options = grad.options().dtype(scalar_type<S>());
    if (wants_z) {
      grad_z = at::empty_like(grad, options);
      body.grad_z = grad_z.template mutable_data_ptr<S>();
    }
    // Without a batch norm the two are one.
    if (wants_skip && (args_.batch_norm || !wants_z)) {
      grad_skip = at::empty_like(grad, options);
      body.grad_skip = grad_skip.template mutable_data_ptr<S>();
    }
    run_(piece_grid(pieces(rows_)), body);
    if (wants_skip) result_[kSkip] = skip_gradient(grad_skip.defined() ? grad_skip : grad_z);
    return grad_z;
  }

  /// Gradients of bias, gamma and beta, and the coefficients of dz.
  template <typename G>
  void vectors(FusedGradient<G, S, S, T>& body, bool wants_z) {
    const bool through_statistics = args_.batch_stats && wants_z;
    const bool product = args_.needs[kBnWeight] || through_statistics;
    const bool sums = product || args_.needs[kBnBias] || (args_.needs[kBias] && !args_.batch_stats);
    if (args_.batch_norm) moments_ = args_.moments->contiguous();
    if (product) z_ = laid_out(*args_.z, args_.channels_last);
    const T* mean = moments_.defined() ? moments_.template const_data_ptr<T>() : nullptr;
    const ChannelCut cut = sums ? ChannelCut(rows_) : ChannelCut();
    Buffer<GradientSums> partials(cut.partials(), args_.grad);
    if (cut.chunks != 0) {
      GradientOfTile<G, S, T> tile;
      tile.rows = rows_;
      tile.grad = body.grad;
      tile.mask = body.mask;
      if (product) {
        tile.z = z_.template const_data_ptr<S>();
        tile.mean = mean;
      }
      using Body = ReduceChannels<GradientSums, GradientOfTile<G, S, T>>;
      run_(cut.grid(), Body{cut, tile, partials.data()});
    }
    if (!sums && !args_.batch_norm && !args_.needs[kBias]) return;
    const Values<V> gamma(args_.bn_weight);
    GradientOfChannel<T, V> channel;
    channel.gamma = gamma.data();
    channel.moments = mean;
    channel.batch_stats = args_.batch_stats;
    channel.channels = channels_;
    channel.count = static_cast<double>(rows_.total / channels_);
    if (args_.needs[kBias]) channel.bias = output(result_[kBias]);
    if (args_.needs[kBnWeight]) channel.bn_weight = output(result_[kBnWeight]);
    if (args_.needs[kBnBias]) channel.bn_bias = output(result_[kBnBias]);
    if (args_.batch_norm) body.a = channel.a = output(a_);
    if (through_statistics) {
      body.z = z_.template const_data_ptr<S>();
      body.mean = mean;
      body.k = channel.k = output(k_);
      body.k0 = channel.k0 = output(k0_);
    }
    using Body = FinishChannels<GradientSums, GradientOfChannel<T, V>>;
    run_(Body::grid(channels_), Body{partials.data(), cut.chunks, channels_, channel});
  }

  T* output(at::Tensor& into) const {
    into = vector<T>(channels_, args_.grad);
    return into.template mutable_data_ptr<T>();
  }

  void convolve_back(const at::Tensor& grad_z) {
    const at::ScalarType type = scalar_type<S>();
    at::Tensor input = args_.input;
    if (args_.input_scale.has_value()) {
      input = dequantize(input, *args_.input_scale, *args_.input_zero_point, type);
    }
    const bool unbatched = static_cast<Base>(args_.base) != Base::kLinear && input.dim() == 3;
    input = laid_out(batched(input, args_.base), args_.channels_last);
    const at::Tensor weight = args_.quantize_weight
                                  ? fake_quantize_weight(args_.weight, args_.base, args_.groups)
                                  : args_.weight;
    std::tie(result_[kInput], result_[kWeight]) =
        convolve_backward(args_, grad_z, input, weight.to(type));
    if (args_.needs[kInput]) {
      result_[kInput] = laid_out(result_[kInput], args_.channels_last);
      if (unbatched) result_[kInput] = result_[kInput].squeeze(0);
    }
    if (args_.needs[kWeight]) {
      result_[kWeight] = result_[kWeight].contiguous(args_.weight.suggest_memory_format());
    }
  }

  const FusedBackwardArgs& args_;
  const Runner& run_;
  FusedRows rows_;
  std::vector<int64_t> z_sizes_;
  int64_t channels_ = 0;
  FusedGradients result_;
  at::Tensor z_, moments_, a_, k_, k0_;
};

template <typename Runner>
FusedGradients fused_backward(const FusedBackwardArgs& args, const Runner& run) {
  return with_float_type(args.grad.scalar_type(), [&](auto zero) {
    return BackwardPass<Runner, decltype(zero)>(args, run).run();
  });
}

}  // namespace horizon::ops::cuda
