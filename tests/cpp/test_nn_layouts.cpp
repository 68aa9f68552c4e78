// Every variant and layout of the fused family through prepare and convert.
#include "catch.h"
#include "nn_models.h"

namespace {

using namespace horizon;    // NOLINT
using namespace torch::nn;  // NOLINT

/// A group of every kind between stubs, with one for the other operand.
struct GroupNet {
  explicit GroupNet(const std::shared_ptr<nn::FusedImpl>& fused)
      : list(nn::QuantStub(), nn::QuantStub(), fused, nn::DeQuantStub()) {}

  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& skip) {
    auto& group = *list[2]->as<nn::GroupLayer>();
    const torch::Tensor q = nn::call(*list[0], x);
    const torch::Tensor y =
        group.variant().add ? group.run(q, nn::call(*list[1], skip)) : group.forward(q);
    return nn::call(*list[3], y);
  }

  ModuleList list;
};

}  // namespace

TEST_CASE("every variant and layout converts to the bit", "[nn][quantize]") {
  using fuse::Activation;
  using fuse::Kind;
  torch::manual_seed(8);
  const bool batch_norm = GENERATE(false, true), add = GENERATE(false, true);
  const Activation act = GENERATE(Activation::kNone, Activation::kReLU, Activation::kReLU6);
  const int layout = GENERATE(range(0, 7));
  const auto conv = [](Conv2dOptions options) { return Conv2d(options).ptr(); };
  const Conv2dOptions plain(4, 6, 3);
  std::shared_ptr<torch::nn::Module> base, bn;
  switch (layout) {
    case 0:
      base = conv(Conv2dOptions(plain).stride(2).padding({1, 2}).groups(2));
      break;
    case 1:
      base = conv(Conv2dOptions(4, 6, {2, 4}).padding(torch::kSame).bias(false));
      break;
    case 2:
      base = conv(Conv2dOptions(plain).padding({1, 2}).padding_mode(torch::kReflect));
      break;
    case 3:
      base = conv(Conv2dOptions(plain).padding(1).padding_mode(torch::kCircular).dilation(2));
      break;
    case 4:
      base = conv(Conv2dOptions(plain).padding(torch::kValid));
      break;
    case 5:
      base = ConvTranspose2d(ConvTranspose2dOptions(4, 6, 3).stride(2).output_padding(1).groups(2))
                 .ptr();
      break;
    default:
      base = Linear(5, 6).ptr();
  }
  const bool linear = layout == 6;
  if (batch_norm) {
    if (linear) {
      bn = BatchNorm1d(6).ptr();
    } else {
      bn = BatchNorm2d(6).ptr();
    }
    test::stir(*bn);
  }
  const torch::Tensor x = linear ? torch::randn({8, 5}) : torch::randn({2, 4, 7, 6});
  const torch::Tensor skip = linear ? torch::randn({6}) : torch::randn({2, 6, 1, 1});
  const auto fused = std::make_shared<nn::FusedImpl>(
      fuse::Variant{nn::base_kind(*base), batch_norm, add, act}, base, bn);
  GroupNet net(fused);
  net.list->eval();
  const torch::Tensor expected = net.forward(x, skip);
  prepare(*net.list);
  set_fake_quantize(*net.list, nn::FakeQuantState::kCalibration);
  CHECK(test::difference(net.forward(x, skip), expected) < 1e-4);
  set_fake_quantize(*net.list, nn::FakeQuantState::kQat);
  const torch::Tensor y = net.forward(x, skip);
  CHECK(test::difference(y, expected) < 0.08 * expected.abs().max().item<double>());
  convert(*net.list);
  CHECK(torch::equal(net.forward(x, skip), y));
}

TEST_CASE("twice the result of a quantized convolution converts to the bit", "[nn][quantize]") {
  struct NetImpl : nn::Fusable<NetImpl> {
    explicit NetImpl(bool norm) : has_norm(norm) { reset(); }
    void reset() override {
      quant = slot("quant", nn::QuantStub());
      conv = slot("conv", Conv2d(3, 4, 1));
      bn = slot("bn", BatchNorm2d(4));
      add = functional("add");
      dequant = slot("dequant", nn::DeQuantStub());
    }
    torch::Tensor forward(torch::Tensor x) {
      torch::Tensor y = conv(quant(x));
      if (has_norm) y = bn(y);
      return dequant(add->add_relu(y, y));
    }
    bool has_norm;
    nn::Slot quant, conv, bn, dequant;
    nn::FloatFunctional add;
  };
  const bool norm = GENERATE(false, true);
  auto net = std::make_shared<NetImpl>(norm);
  test::stir(*net);
  net->eval();
  const torch::Tensor x = torch::randn({4, 3, 8, 8});
  const torch::Tensor expected = net->forward(x);
  if (norm) {
    net->train();
    fuse_modules(*net, {{"conv", "bn", "add"}});
  } else {
    fuse_modules(*net, {{"conv", "add"}});
  }
  prepare(*net, {}, {{"bn", std::nullopt}});
  net->eval();
  set_fake_quantize(*net, nn::FakeQuantState::kCalibration);
  CHECK(test::difference(net->forward(x), expected) < 1e-4);
  set_fake_quantize(*net, nn::FakeQuantState::kQat);
  const torch::Tensor y = net->forward(x);
  CHECK(test::difference(y, expected) < 0.05 * expected.abs().max().item<double>());
  convert(*net);
  CHECK(torch::equal(net->forward(x), y));
}
