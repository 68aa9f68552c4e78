#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fuse/patterns.h"

namespace horizon::nn {

/// What a group of the fused family consists of and how its base is laid out, in every stage.
struct GroupSpec {
  fuse::Variant variant;
  /// `base` argument of the operators: 0 conv2d, 1 conv_transpose2d, 2 linear.
  int64_t base = 0;
  int64_t out_channels = 0;
  std::vector<int64_t> kernel_size{1, 1}, stride{1, 1}, dilation{1, 1}, output_padding{0, 0};
  /// Of the operator: two entries, or top, left, bottom, right.
  std::vector<int64_t> padding{0, 0};
  int64_t groups = 1;
  /// Padding that is applied before the operator (modes other than zeros): left, right, top,
  /// bottom; empty if there is none.
  std::vector<int64_t> pads;
  std::string pad_mode;
  /// The base's arguments as it prints them: "(3, 8, kernel_size=[3, 3], …)".
  std::string arguments;

  /// The operators' `activation` argument; `add_relu` computes a relu where there is none.
  int64_t activation(bool add_relu) const;
  /// "ConvBNReLU2d".
  std::string name() const { return fuse::class_name(variant); }
  /// The input as the operator takes it.
  at::Tensor padded(const at::Tensor& input) const;
  /// The output padding with which a transposed convolution of `input` has `output_size`, [H, W] or
  /// the whole shape; its own without one. Throws ValueError for sizes out of reach.
  std::vector<int64_t> output_padding_for(
      const at::Tensor& input, const std::optional<std::vector<int64_t>>& output_size) const;
};

/// Weight and bias (undefined if there is none) of a Conv2d, ConvTranspose2d or Linear; the
/// module's own tensors.
std::pair<at::Tensor, at::Tensor> base_tensors(const torch::nn::Module& base);

/// The layout of a group with this base. Throws TypeError for other modules.
GroupSpec describe_group(const torch::nn::Module& base, const fuse::Variant& variant);

/// Kind of a base, by exact type; kOther for other modules.
fuse::Kind base_kind(const torch::nn::Module& module);

/// The tensors of a batch norm, with the settings that the operators take.
struct NormTensors {
  at::Tensor weight, bias, running_mean, running_var, num_batches_tracked;
  std::optional<double> momentum;
  double eps = 1e-5;
};

/// The tensors of a BatchNorm1d or BatchNorm2d. Throws TypeError for other modules.
NormTensors norm_tensors(const torch::nn::Module& batch_norm);

/// What operators take for a tensor that may be undefined.
std::optional<at::Tensor> maybe(const at::Tensor& tensor);

/// A group's weight and bias folded with its batch norm's statistics, computed in float64; fresh,
/// in the weight's dtype, requiring a gradient as the module's do.
std::pair<at::Tensor, at::Tensor> folded_tensors(const torch::nn::Module& base,
                                                 const torch::nn::Module& batch_norm);

}  // namespace horizon::nn
