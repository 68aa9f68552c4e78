#include <ATen/ExpandUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include "ops/checks.h"
#include "ops/cpu/dense.h"
#include "ops/cpu/fused_passes.h"
#include "ops/cpu/fused_scratch.h"
#include "ops/cpu/fused_vectors.h"
#include "ops/cpu/kernels/fake_quantize.h"
#include "ops/fused.h"
#include "ops/fused_convolution.h"
#include "ops/fused_shapes.h"
#include "ops/weights.h"
#include "quant/grid.h"

namespace horizon::ops {
namespace {

using torch::jit::Stack;

enum Need : size_t { kInput, kWeight, kBias, kBnWeight, kBnBias, kSkip };

/// From the gradient of the output to those of z, the skip and the vectors, in compute type T.
template <typename T>
class Chain {
 public:
  Chain(const FusedBackwardArgs& args, at::IntArrayRef z_sizes)
      : args_(args), type_(c10::CppTypeToScalarType<T>::value), z_sizes_(z_sizes) {
    channels_ = fused_channels(args.weight, args.base, args.groups);
    chain_.rows = fused_rows(z_sizes, channels_, channel_inner(args.base, args.channels_last));
  }

  /// Returns the gradient of z in the output's dtype, if a convolution gradient is needed.
  at::Tensor run(FusedGradients& result) {
    grad_ = align(args_.grad);
    if (args_.mask.has_value()) chain_.mask = args_.mask->const_data_ptr<uint8_t>();
    if (grad_.sizes() != z_sizes_) reduce_broadcast(result);
    chain_.grad = grad_.const_data_ptr<T>();
    const bool wants_z = args_.needs[kInput] || args_.needs[kWeight];
    const bool wants_skip = args_.needs[kSkip] && !result[kSkip].defined();
    if (args_.batch_norm) load_moments();
    vectors(result, wants_z);
    if (!wants_z && !wants_skip) return {};
    if (!args_.batch_norm && chain_.mask == nullptr && !wants_skip) return finish(grad_);
    at::Tensor grad_z, grad_skip;
    if (wants_z) {
      // The skip's gradient leaves the operator, in the same memory where there is no batch norm.
      const bool leaves = wants_skip && !args_.batch_norm;
      grad_z = leaves ? at::empty_like(grad_)
                      : scratch_tensor(Scratch::kGradient, grad_.sizes(), grad_.strides(), type_);
      chain_.grad_z = grad_z.mutable_data_ptr<T>();
    }
    if (wants_skip && (args_.batch_norm || !wants_z)) {
      grad_skip = at::empty_like(grad_);
      chain_.grad_skip = grad_skip.mutable_data_ptr<T>();
    }
    if (chain_.rows.total != 0) cpu::gradient_all(chain_);
    if (wants_skip) {
      result[kSkip] = skip_gradient(grad_skip.defined() ? grad_skip : grad_z, args_.channels_last);
    }
    return wants_z ? finish(grad_z) : at::Tensor();
  }

 private:
  at::Tensor finish(const at::Tensor& x) const { return x.to(args_.grad.scalar_type()); }

  at::Tensor skip_gradient(const at::Tensor& g, bool channels_last) const {
    std::vector<int64_t> sizes;
    for (const auto& size : args_.skip_size) sizes.push_back(size.expect_int());
    at::Tensor result = finish(at::sum_to(g, at::IntArrayRef(sizes)));
    return result.contiguous(memory_format(channels_last && result.dim() == 4));
  }

  /// The output's gradient, with the batch dimension of z, dense in z's layout if it has its sizes.
  at::Tensor align(const at::Tensor& grad) const {
    at::Tensor g = grad;
    const bool image = static_cast<Base>(args_.base) != Base::kLinear;
    if (image && g.dim() == 3) g = g.unsqueeze(0);
    const bool last = args_.channels_last && g.sizes() == z_sizes_;
    return g.contiguous(memory_format(last)).to(type_);
  }

  /// The skip was larger than z: mask first, then sum over what was broadcast.
  void reduce_broadcast(FusedGradients& result) {
    // By the argument: the pointer of an empty mask may be null.
    if (args_.mask.has_value()) {
      cpu::FusedGradient<T> flat;
      flat.rows = flat_rows(grad_.numel());
      flat.grad = grad_.const_data_ptr<T>();
      flat.mask = chain_.mask;
      at::Tensor g = at::empty_like(grad_);
      flat.grad_z = g.mutable_data_ptr<T>();
      if (flat.rows.total != 0) cpu::gradient_all(flat);
      if (args_.needs[kSkip]) result[kSkip] = skip_gradient(g, args_.channels_last);
      grad_ = g;
      chain_.mask = nullptr;
    }
    grad_ = align(at::sum_to(grad_, z_sizes_));
  }

  void load_moments() {
    const at::Tensor moments = *args_.moments;
    mean_ = cpu::read_vector(moments.select(0, 0), channels_, 0);
    inv_std_ = cpu::read_vector(moments.select(0, 1), channels_, 1);
    a_ = cpu::read_vector(args_.bn_weight, channels_, 1);
    for (size_t c = 0; c < a_.size(); ++c) a_[c] *= inv_std_[c];
    mean_row_ = cpu::coefficients<T>(mean_, chain_.rows);
    a_row_ = cpu::coefficients<T>(a_, chain_.rows);
    chain_.a = a_row_.data();
    chain_.mean = mean_row_.data();
  }

  /// Gradients of bias, gamma and beta, and the coefficients of dz under batch statistics.
  void vectors(FusedGradients& result, bool wants_z) {
    const bool through_statistics = args_.batch_stats && wants_z;
    const bool product = args_.needs[kBnWeight] || through_statistics;
    const bool sums = product || args_.needs[kBnBias] || (args_.needs[kBias] && !args_.batch_stats);
    if (product) {
      z_ =
          args_.z->contiguous(memory_format(args_.channels_last && z_sizes_.size() == 4)).to(type_);
      chain_.z = z_.template const_data_ptr<T>();
    }
    std::vector<double> sum(static_cast<size_t>(channels_)), of_product = sum, zero = sum;
    if (sums) std::tie(sum, of_product) = cpu::channel_sums(chain_);
    if (args_.needs[kBnBias]) result[kBnBias] = cpu::make_vector(sum, type_);
    if (args_.needs[kBnWeight]) {
      std::vector<double> gamma = of_product;
      for (size_t c = 0; c < gamma.size(); ++c) gamma[c] *= inv_std_[c];
      result[kBnWeight] = cpu::make_vector(gamma, type_);
    }
    if (args_.needs[kBias]) {
      // Batch statistics subtract the mean, so that a bias has no effect.
      std::vector<double> bias = args_.batch_stats ? zero : sum;
      if (args_.batch_norm && !args_.batch_stats) {
        for (size_t c = 0; c < bias.size(); ++c) bias[c] *= a_[c];
      }
      result[kBias] = cpu::make_vector(bias, type_);
    }
    if (!through_statistics) {
      chain_.z = nullptr;
      return;
    }
    const double count = static_cast<double>(chain_.rows.total / channels_);
    std::vector<double> k = zero, k0 = zero;
    for (size_t c = 0; c < k.size() && count != 0; ++c) {
      k0[c] = -a_[c] * sum[c] / count;
      k[c] = -a_[c] * inv_std_[c] * inv_std_[c] * of_product[c] / count;
    }
    k_row_ = cpu::coefficients<T>(k, chain_.rows);
    k0_row_ = cpu::coefficients<T>(k0, chain_.rows);
    chain_.k = k_row_.data();
    chain_.k0 = k0_row_.data();
  }

  const FusedBackwardArgs& args_;
  const at::ScalarType type_;
  const at::IntArrayRef z_sizes_;
  int64_t channels_ = 0;
  cpu::FusedGradient<T> chain_;
  at::Tensor grad_, z_;
  std::vector<double> mean_, inv_std_, a_;
  std::vector<T> mean_row_, a_row_, k_row_, k0_row_;
};

/// The floats that the saved codes stand for, in this thread's scratch memory.
at::Tensor decode_input(const FusedBackwardArgs& args, at::ScalarType type) {
  const float scale = read_scale("fused", "input_scale", *args.input_scale);
  const int32_t zero_point = read_zero_point("fused", "input_zero_point", *args.input_zero_point,
                                             quant::kStoredMin, quant::kStoredMax);
  const at::Tensor codes = cpu::dense_input(args.input);
  const at::Tensor x = scratch_tensor(Scratch::kInput, codes.sizes(), codes.strides(), type);
  const auto* from = codes.const_data_ptr<uint8_t>();
  void* to = x.mutable_data_ptr();
  cpu::parallel_blocks(x.numel(), [&](int64_t begin, int64_t end) {
    cpu::fake_quantize_kernels().dequantize(cpu::float_type(type), from, to, begin, end, scale,
                                            zero_point);
  });
  return x;
}

FusedGradients backward(const FusedBackwardArgs& args) {
  FusedGradients result;
  std::vector<int64_t> z_sizes;
  for (const auto& size : fused_z_sizes(args)) z_sizes.push_back(size.expect_int());
  const at::ScalarType type = args.grad.scalar_type();
  const bool wide = type == at::kDouble;
  const at::Tensor grad_z =
      wide ? Chain<double>(args, z_sizes).run(result) : Chain<float>(args, z_sizes).run(result);
  if (grad_z.defined()) {
    at::Tensor input = args.input;
    if (args.input_scale.has_value()) input = decode_input(args, type);
    const bool unbatched = static_cast<Base>(args.base) != Base::kLinear && input.dim() == 3;
    if (unbatched) input = input.unsqueeze(0);
    input = input.contiguous(memory_format(args.channels_last && input.dim() == 4));
    const at::Tensor weight =
        args.quantize_weight ? scratch_weight(args.weight, args.base, args.groups) : args.weight;
    std::tie(result[kInput], result[kWeight]) =
        convolve_backward(args, grad_z, input, weight.to(type));
    if (args.needs[kInput]) {
      const at::Tensor& g = result[kInput];
      result[kInput] = g.contiguous(memory_format(args.channels_last && g.dim() == 4));
      if (unbatched) result[kInput] = result[kInput].squeeze(0);
    }
    if (args.needs[kWeight]) {
      result[kWeight] = result[kWeight].contiguous(args.weight.suggest_memory_format());
    }
  }
  for (size_t i = 0; i < result.size(); ++i) {
    if (!args.needs[i] || !result[i].defined()) {
      const bool vector = i == kBias || i == kBnWeight || i == kBnBias;
      const auto kind = vector ? (wide ? at::kDouble : at::kFloat) : type;
      result[i] = at::empty({0}, at::device(at::kCPU).dtype(kind));
    }
  }
  return result;
}

void fused_backward_cpu(const c10::OperatorHandle&, Stack* stack) {
  push_results(*stack, backward(pop_fused_backward(*stack)));
}

}  // namespace

TORCH_LIBRARY_IMPL(horizon, CPU, m) {
  m.impl("_fused_backward", torch::CppFunction::makeFromBoxedFunction<&fused_backward_cpu>());
}

}  // namespace horizon::ops
