#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <array>
#include <optional>
#include <tuple>
#include <vector>

#include "ops/quantizer.h"
#include "quant/requantize.h"

namespace horizon::ops {

/// The arguments of `fused`, in the order of its schema.
struct FusedArgs {
  at::Tensor input;
  std::optional<at::Tensor> input_scale, input_zero_point;
  at::Tensor weight;
  std::optional<at::Tensor> bias, bn_weight, bn_bias;
  std::optional<at::Tensor> running_mean, running_var, num_batches_tracked;
  std::optional<at::Tensor> skip, skip_scale, skip_zero_point;
  QuantizerArgs quantizer;
  int64_t base = 0;
  std::vector<int64_t> stride{1, 1}, padding{0, 0}, dilation{1, 1}, output_padding{0, 0};
  int64_t groups = 1;
  bool batch_norm = false, batch_stats = false;
  std::optional<double> momentum = 0.1;
  double eps = 1e-5;
  int64_t activation = 0;
  bool quantize_weight = true, integer = false;

  quant::Activation act() const { return static_cast<quant::Activation>(activation); }
};

/// y = fq(act(bn(conv(input, fq(weight)) + bias) + skip)) as one autograd node, and scale and
/// stored zero point of y (empty where it is not quantized).
///
/// `input` and `skip` are floats of one dtype; `input` is [C, H, W], [N, C, H, W] or, for Linear,
/// [*, in_features] (two dimensions with a batch norm). `skip` broadcasts as in torch.add. The
/// running statistics and the quantizer's state move in place. Raises ValueError or TypeError for
/// arguments that break the rules of docs/design.md.
std::tuple<at::Tensor, at::Tensor, at::Tensor> fused(const FusedArgs& args);

/// What `_fused_forward` is told besides: the layout of z and what backward will want.
struct FusedPlan {
  bool channels_last = false;
  bool save_z = false;
  bool save_mask = false;
  bool save_moments = false;
  bool save_codes = false;
};

/// `moments` is [2, channels]: mean and 1 / sqrt(var + eps). What was not asked for is empty.
struct FusedForward {
  at::Tensor output, scale, zero_point, z, mask, moments, codes;
};

/// The arguments of `_fused_backward`. `input` is uint8 codes where `input_scale` is given.
struct FusedBackwardArgs {
  at::Tensor grad;
  std::optional<at::Tensor> z, mask, moments;
  at::Tensor input;
  std::optional<at::Tensor> input_scale, input_zero_point;
  at::Tensor weight;
  std::optional<at::Tensor> bn_weight;
  std::vector<c10::SymInt> skip_size;
  int64_t base = 0;
  std::vector<int64_t> stride, padding, dilation, output_padding;
  int64_t groups = 1;
  bool batch_norm = false, batch_stats = false, quantize_weight = false, channels_last = false;
  /// input, weight, bias, bn_weight, bn_bias, skip
  std::array<bool, 6> needs{};
};

/// Gradients in the order of `needs`; those not asked for are empty.
using FusedGradients = std::array<at::Tensor, 6>;

// Through the dispatcher.
FusedForward call_fused_forward(const FusedArgs& args, const FusedPlan& plan);
FusedGradients call_fused_backward(const FusedBackwardArgs& args);

// Boxed kernels: the stack holds the arguments of the schema and is left with the results.
FusedArgs pop_fused_args(torch::jit::Stack& stack);
std::pair<FusedArgs, FusedPlan> pop_fused_forward(torch::jit::Stack& stack);
FusedBackwardArgs pop_fused_backward(torch::jit::Stack& stack);
void push_results(torch::jit::Stack& stack, const FusedForward& results);
void push_results(torch::jit::Stack& stack, const FusedGradients& results);

/// Raises for anything that `fused` does not accept; on any device, symbolic shapes included.
void check_fused(const FusedArgs& args);

}  // namespace horizon::ops
