#pragma once

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include "nn/fused.h"

namespace horizon::nn {

/// The options of a base: Conv2dOptions, ConvTranspose2dOptions or LinearOptions.
template <fuse::Kind kBase>
struct BaseOf;
template <>
struct BaseOf<fuse::Kind::kConv2d> {
  using Impl = torch::nn::Conv2dImpl;
  using Options = torch::nn::Conv2dOptions;
  using Norm = torch::nn::BatchNorm2dImpl;
};
template <>
struct BaseOf<fuse::Kind::kConvTranspose2d> {
  using Impl = torch::nn::ConvTranspose2dImpl;
  using Options = torch::nn::ConvTranspose2dOptions;
  using Norm = torch::nn::BatchNorm2dImpl;
};
template <>
struct BaseOf<fuse::Kind::kLinear> {
  using Impl = torch::nn::LinearImpl;
  using Options = torch::nn::LinearOptions;
  using Norm = torch::nn::BatchNorm1dImpl;
};

/// A fused module built by hand: the options of its base and, where there is a batch norm, of that
/// one (eps, momentum, affine, track_running_stats; the number of features is the base's).
///
/// Called by `forward(input)`, variants with an add by `run(input, skip)`.
template <fuse::Kind kBase, bool kBatchNorm, bool kAdd, fuse::Activation kActivation>
class Fused : public torch::nn::ModuleHolder<FusedImpl> {
 public:
  using Options = typename BaseOf<kBase>::Options;

  explicit Fused(std::nullptr_t) : ModuleHolder(nullptr) {}
  explicit Fused(std::shared_ptr<FusedImpl> module) : ModuleHolder(std::move(module)) {}
  explicit Fused(const Options& options) : Fused(options, torch::nn::BatchNormOptions(1)) {}
  Fused(const Options& options, torch::nn::BatchNormOptions norm)
      : ModuleHolder(make(options, norm)) {}

 private:
  static std::shared_ptr<FusedImpl> make(const Options& options, torch::nn::BatchNormOptions norm) {
    auto base = std::make_shared<typename BaseOf<kBase>::Impl>(options);
    std::shared_ptr<torch::nn::Module> bn;
    if (kBatchNorm) {
      const int64_t channels = describe_group(*base, {}).out_channels;
      bn = std::make_shared<typename BaseOf<kBase>::Norm>(norm.num_features(channels));
    }
    return std::make_shared<FusedImpl>(fuse::Variant{kBase, kBatchNorm, kAdd, kActivation},
                                       std::move(base), std::move(bn));
  }
};

using ConvReLU2d = Fused<fuse::Kind::kConv2d, false, false, fuse::Activation::kReLU>;
using ConvReLU62d = Fused<fuse::Kind::kConv2d, false, false, fuse::Activation::kReLU6>;
using ConvAdd2d = Fused<fuse::Kind::kConv2d, false, true, fuse::Activation::kNone>;
using ConvAddReLU2d = Fused<fuse::Kind::kConv2d, false, true, fuse::Activation::kReLU>;
using ConvAddReLU62d = Fused<fuse::Kind::kConv2d, false, true, fuse::Activation::kReLU6>;
using ConvBN2d = Fused<fuse::Kind::kConv2d, true, false, fuse::Activation::kNone>;
using ConvBNReLU2d = Fused<fuse::Kind::kConv2d, true, false, fuse::Activation::kReLU>;
using ConvBNReLU62d = Fused<fuse::Kind::kConv2d, true, false, fuse::Activation::kReLU6>;
using ConvBNAdd2d = Fused<fuse::Kind::kConv2d, true, true, fuse::Activation::kNone>;
using ConvBNAddReLU2d = Fused<fuse::Kind::kConv2d, true, true, fuse::Activation::kReLU>;
using ConvBNAddReLU62d = Fused<fuse::Kind::kConv2d, true, true, fuse::Activation::kReLU6>;

using ConvTransposeReLU2d =
    Fused<fuse::Kind::kConvTranspose2d, false, false, fuse::Activation::kReLU>;
using ConvTransposeReLU62d =
    Fused<fuse::Kind::kConvTranspose2d, false, false, fuse::Activation::kReLU6>;
using ConvTransposeAdd2d =
    Fused<fuse::Kind::kConvTranspose2d, false, true, fuse::Activation::kNone>;
using ConvTransposeAddReLU2d =
    Fused<fuse::Kind::kConvTranspose2d, false, true, fuse::Activation::kReLU>;
using ConvTransposeAddReLU62d =
    Fused<fuse::Kind::kConvTranspose2d, false, true, fuse::Activation::kReLU6>;
using ConvTransposeBN2d = Fused<fuse::Kind::kConvTranspose2d, true, false, fuse::Activation::kNone>;
using ConvTransposeBNReLU2d =
    Fused<fuse::Kind::kConvTranspose2d, true, false, fuse::Activation::kReLU>;
using ConvTransposeBNReLU62d =
    Fused<fuse::Kind::kConvTranspose2d, true, false, fuse::Activation::kReLU6>;
using ConvTransposeBNAdd2d =
    Fused<fuse::Kind::kConvTranspose2d, true, true, fuse::Activation::kNone>;
using ConvTransposeBNAddReLU2d =
    Fused<fuse::Kind::kConvTranspose2d, true, true, fuse::Activation::kReLU>;
using ConvTransposeBNAddReLU62d =
    Fused<fuse::Kind::kConvTranspose2d, true, true, fuse::Activation::kReLU6>;

using LinearReLU = Fused<fuse::Kind::kLinear, false, false, fuse::Activation::kReLU>;
using LinearReLU6 = Fused<fuse::Kind::kLinear, false, false, fuse::Activation::kReLU6>;
using LinearAdd = Fused<fuse::Kind::kLinear, false, true, fuse::Activation::kNone>;
using LinearAddReLU = Fused<fuse::Kind::kLinear, false, true, fuse::Activation::kReLU>;
using LinearAddReLU6 = Fused<fuse::Kind::kLinear, false, true, fuse::Activation::kReLU6>;
using LinearBN = Fused<fuse::Kind::kLinear, true, false, fuse::Activation::kNone>;
using LinearBNReLU = Fused<fuse::Kind::kLinear, true, false, fuse::Activation::kReLU>;
using LinearBNReLU6 = Fused<fuse::Kind::kLinear, true, false, fuse::Activation::kReLU6>;
using LinearBNAdd = Fused<fuse::Kind::kLinear, true, true, fuse::Activation::kNone>;
using LinearBNAddReLU = Fused<fuse::Kind::kLinear, true, true, fuse::Activation::kReLU>;
using LinearBNAddReLU6 = Fused<fuse::Kind::kLinear, true, true, fuse::Activation::kReLU6>;

}  // namespace horizon::nn
