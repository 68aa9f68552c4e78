#pragma once

#include <horizon_nn.h>

#include <string>

namespace horizon::test {

/// relu(bn(conv(x)) + x), written as users write it.
struct BlockImpl : nn::Fusable<BlockImpl> {
  explicit BlockImpl(int64_t width = 4, bool skip_first = false)
      : channels(width), skip_is_first(skip_first) {
    reset();
  }
  void reset() override {
    conv = slot(
        "conv",
        torch::nn::Conv2d(torch::nn::Conv2dOptions(channels, channels, 3).padding(1).bias(false)));
    bn = slot("bn", torch::nn::BatchNorm2d(channels));
    relu = slot("relu", torch::nn::ReLU());
    add = functional("add");
  }
  torch::Tensor forward(torch::Tensor x) {
    const torch::Tensor y = bn(conv(x));
    return relu(skip_is_first ? add->add(x, y) : add->add(y, x));
  }

  int64_t channels;
  bool skip_is_first;
  nn::Slot conv, bn, relu;
  nn::FloatFunctional add;
};
TORCH_MODULE(Block);

/// Moves the statistics and affine parameters of every batch norm away from their initial values,
/// which would hide errors.
inline void stir(torch::nn::Module& model) {
  const torch::NoGradGuard no_grad;
  for (const auto& module : model.modules()) {
    const auto stir_one = [](auto* bn) {
      if (bn == nullptr || !bn->running_mean.defined()) return;
      bn->running_mean.uniform_(-0.5, 0.5);
      bn->running_var.uniform_(0.5, 2.0);
      if (!bn->weight.defined()) return;
      bn->weight.uniform_(0.5, 1.5);
      bn->bias.uniform_(-0.5, 0.5);
    };
    stir_one(dynamic_cast<torch::nn::BatchNorm2dImpl*>(module.get()));
    stir_one(dynamic_cast<torch::nn::BatchNorm1dImpl*>(module.get()));
  }
}

/// Stub, convolution group, block, pools, batch norm alone, transposed convolution group, linear
/// layer, stub.
inline nn::Sequential make_net() {
  using namespace torch::nn;
  nn::Sequential net;
  net->push_back("quant", nn::QuantStub());
  net->push_back("conv", Conv2d(Conv2dOptions(3, 4, 3).padding(1)));
  net->push_back("bn", BatchNorm2d(4));
  net->push_back("relu", ReLU6());
  net->push_back("block", Block(4));
  net->push_back("pool", MaxPool2d(2));
  net->push_back("norm", BatchNorm2d(4));
  net->push_back("up", ConvTranspose2d(ConvTranspose2dOptions(4, 6, 2).stride(2)));
  net->push_back("up_bn", BatchNorm2d(6));
  net->push_back("up_relu", ReLU());
  net->push_back("average", AdaptiveAvgPool2d(2));
  net->push_back("flatten", Flatten());
  net->push_back("dropout", Dropout(0.5));
  net->push_back("head", Linear(24, 5));
  net->push_back("dequant", nn::DeQuantStub());
  stir(*net);
  return net;
}

inline const std::vector<std::vector<std::string>> kNetGroups = {
    {"conv", "bn", "relu"},
    {"block.conv", "block.bn", "block.add", "block.relu"},
    {"up", "up_bn", "up_relu"}};

inline double difference(const torch::Tensor& a, const torch::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

}  // namespace horizon::test
