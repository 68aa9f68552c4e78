// prepare and convert on torch::nn models.
#include <torch/serialize.h>

#include <limits>
#include <sstream>

#include "catch.h"
#include "nn_models.h"

namespace {

using namespace horizon;    // NOLINT
using namespace torch::nn;  // NOLINT

torch::Tensor image() { return torch::randn({4, 3, 8, 8}); }

nn::Sequential copy_of(const nn::Sequential& net) {
  return nn::Sequential(std::dynamic_pointer_cast<nn::SequentialImpl>(net->clone()));
}

nn::Sequential make_prepared(const QConfig& qconfig = {}, const QConfigs& overrides = {}) {
  torch::manual_seed(4);
  nn::Sequential net = test::make_net();
  fuse_modules(*net, test::kNetGroups);
  prepare(*net, qconfig, overrides);
  return net;
}

void train(nn::Sequential net, int steps = 3) {
  net->train();
  for (int i = 0; i < steps; ++i) net->forward(image());
  net->eval();
}

}  // namespace

TEST_CASE("a converted model computes what the prepared one computes in eval mode, to the bit",
          "[nn][quantize]") {
  const auto preset =
      GENERATE(quant::Preset::kHorizon, quant::Preset::kTensorrt, quant::Preset::kX86);
  const bool high_precision = GENERATE(false, true);
  QConfigs overrides;
  if (high_precision) overrides["head"] = default_qat_out_qconfig(preset);
  nn::Sequential net = make_prepared(default_qat_qconfig(preset), overrides);
  train(net);
  nn::Sequential int8 = copy_of(net);
  convert(*int8);
  for (int i = 0; i < 3; ++i) {
    const torch::Tensor x = image();
    const torch::Tensor y = net->forward(x);
    CHECK(y.abs().max().item<float>() > 0);
    CHECK(torch::equal(int8->forward(x), y));
  }
  for (const auto& [name, tensor] : state_dict(*int8)) {
    if (name == "block.add.weight") CHECK(tensor.scalar_type() == torch::kChar);
  }
}

TEST_CASE("training moves parameters, ranges and statistics of the very tensors of the float model",
          "[nn][quantize]") {
  torch::manual_seed(5);
  nn::Sequential net = test::make_net();
  const torch::Tensor weight = net->named_parameters()["block.conv.weight"];
  fuse_modules(*net, test::kNetGroups);
  prepare(*net);
  CHECK(net->named_parameters()["block.add.weight"].is_same(weight));
  net->train();
  net->forward(image()).square().sum().backward();
  for (const auto& entry : net->named_parameters()) {
    INFO(entry.key());
    REQUIRE(entry.value().grad().defined());
    // A live batch norm takes the bias before it away.
    const bool cancels = entry.key() == "conv.bias" || entry.key() == "up.bias";
    CHECK((entry.value().grad().abs().max().item<float>() > 0) != cancels);
  }
  CHECK(net->named_buffers()["block.add.bn.num_batches_tracked"].item<int64_t>() == 1);
  CHECK(net->named_buffers()["block.add.activation_post_process.observed"].item<int64_t>() == 1);
  net->eval();
  const auto before = state_dict(*copy_of(net));
  net->forward(image());
  for (const auto& [name, tensor] : state_dict(*net)) {
    INFO(name);
    CHECK(torch::equal(tensor, before.at(name)));
  }
}

TEST_CASE("gradients flow in eval mode as well", "[nn][quantize]") {
  nn::Sequential net = make_prepared();
  train(net);
  net->forward(image()).square().sum().backward();
  CHECK(net->named_parameters()["conv.weight"].grad().abs().max().item<float>() > 0);
}

TEST_CASE("prepared and converted models are cloned, saved and loaded", "[nn][quantize]") {
  const bool converted = GENERATE(false, true);
  nn::Sequential net = make_prepared(), other = make_prepared();
  train(net);
  if (converted) {
    convert(*net);
    train(other);  // other ranges; every one must be replaced
    convert(*other);
  }
  other->eval();
  const torch::Tensor x = image();
  const torch::Tensor y = net->forward(x);
  CHECK(torch::equal(copy_of(net)->forward(x), y));
  std::stringstream file;
  torch::save(net, file);
  torch::load(other, file);
  CHECK(torch::equal(other->forward(x), y));
  nn::Sequential third = make_prepared();
  if (converted) convert(*third);
  third->eval();
  load_state_dict(*third, state_dict(*net));
  CHECK(torch::equal(third->forward(x), y));
}

TEST_CASE("ranges, constants and counters keep their dtypes when the model changes its own",
          "[nn][quantize]") {
  nn::Sequential net = make_prepared();
  train(net);
  net->to(torch::kDouble);
  const auto state = state_dict(*net);
  CHECK(state.at("conv.weight").scalar_type() == torch::kDouble);
  CHECK(state.at("conv.activation_post_process.scale").scalar_type() == torch::kFloat);
  CHECK(state.at("conv.activation_post_process.zero_point").scalar_type() == torch::kInt);
  CHECK(state.at("conv.bn.num_batches_tracked").scalar_type() == torch::kLong);
  const torch::Tensor x = image().to(torch::kDouble);
  const torch::Tensor y = net->forward(x);
  CHECK(y.scalar_type() == torch::kDouble);
  convert(*net);
  CHECK(torch::equal(net->forward(x), y));
  net->to(torch::kHalf);
  CHECK(state_dict(*net).at("conv.weight").scalar_type() == torch::kChar);
  CHECK(state_dict(*net).at("conv.bn_scale").scalar_type() == torch::kDouble);
}

TEST_CASE("each operation of a functional is quantized and converts to the bit", "[nn][quantize]") {
  struct NetImpl : nn::Fusable<NetImpl> {
    explicit NetImpl(int which = 0) : method(which) { reset(); }
    void reset() override {
      quant = slot("quant", nn::QuantStub());
      conv = slot("conv", Conv2d(3, 3, 1));
      functional_ = functional("functional");
      relu = slot("relu", ReLU());
      average = slot("average", AvgPool2d(2));
      relu6 = slot("relu6", ReLU6());
      dequant = slot("dequant", nn::DeQuantStub());
    }
    torch::Tensor forward(torch::Tensor x) {
      x = quant(x);
      const torch::Tensor y = conv(x);
      torch::Tensor z;
      if (method == 0) z = functional_->add(x, y);
      if (method == 1) z = functional_->add_relu(x, y);
      if (method == 2) z = functional_->sub(x, y);
      if (method == 3) z = functional_->mul(x, y);
      if (method == 4) z = functional_->cat({x, y}, 1);
      return dequant(relu6(average(relu(z))));
    }
    int method;
    nn::Slot quant, conv, relu, average, relu6, dequant;
    nn::FloatFunctional functional_;
  };
  const int method = GENERATE(0, 1, 2, 3, 4);
  auto net = std::make_shared<NetImpl>(method);
  const torch::Tensor x = image();
  const torch::Tensor expected = net->forward(x);
  prepare(*net, default_qat_qconfig(quant::Preset::kX86));
  net->train();
  for (int i = 0; i < 2; ++i) net->forward(x);
  net->eval();
  const torch::Tensor y = net->forward(x);
  CHECK(test::difference(y, expected) < 0.15);  // about two steps of a range of 8: 2 * 8 / 255
  auto int8 = std::dynamic_pointer_cast<NetImpl>(net->clone());
  convert(*int8);
  CHECK(torch::equal(int8->forward(x), y));
}

TEST_CASE("a dropout in training keeps a grid that is as much coarser", "[nn][quantize]") {
  nn::Sequential net(nn::QuantStub(), Dropout(0.5), Linear(4, 2), nn::DeQuantStub());
  prepare(*net);
  net->train();
  const torch::Tensor y =
      net[1]->as<nn::Layer>()->forward(net[0]->as<nn::Layer>()->forward(torch::randn({8, 4})));
  const nn::Grid* grid = nn::grid_of(y);
  REQUIRE(grid != nullptr);
  const torch::Tensor steps = y / grid->scale;
  CHECK(test::difference(steps, steps.round()) < 1e-3);
  CHECK(net->forward(torch::randn({8, 4})).sizes() == torch::IntArrayRef({8, 2}));
}

TEST_CASE("calibration moves ranges in eval mode and leaves values alone", "[nn][quantize]") {
  nn::Sequential net = make_prepared(default_calib_qconfig());
  net->eval();
  set_fake_quantize(*net, nn::FakeQuantState::kCalibration);
  nn::Sequential plain = [] {
    torch::manual_seed(4);
    nn::Sequential same = test::make_net();
    same->eval();
    return same;
  }();
  const torch::Tensor x = image();
  CHECK(test::difference(net->forward(x), plain->forward(x)) < 1e-4);
  CHECK(net->named_buffers()["quant.activation_post_process.observed"].item<int64_t>() == 1);
  set_fake_quantize(*net, nn::FakeQuantState::kValidation);
  const torch::Tensor y = net->forward(x);
  convert(*net);
  CHECK(torch::equal(net->forward(x), y));
}

TEST_CASE("prepare refuses what it cannot quantize and changes nothing", "[nn][quantize]") {
  struct PlainImpl : torch::nn::Module {
    PlainImpl() { conv = register_module("conv", Conv2d(3, 4, 1)); }
    torch::Tensor forward(torch::Tensor x) { return conv(x); }
    Conv2d conv{nullptr};
  };
  const auto refused = [](nn::Sequential net, const QConfigs& overrides, const char* text) {
    const auto children = net->children();
    CHECK_THROWS_WITH(prepare(*net, {}, overrides), Catch::Contains(text));
    CHECK(net->children() == children);
  };
  refused(nn::Sequential(nn::QuantStub(), Conv2d(3, 4, 1), Sigmoid(), nn::DeQuantStub()), {},
          "prepare: 2 (Sigmoid) has no quantized form");
  refused(nn::Sequential(nn::QuantStub(), std::make_shared<PlainImpl>()), {},
          "prepare: '1.conv' must stand in a Sequential");
  refused(nn::Sequential(Conv2d(3, 4, 1)), {{"head", std::nullopt}}, "got 'head'");
  refused(nn::Sequential(nn::QuantStub()), {{"0", default_qat_out_qconfig()}},
          "'quantize_output' must be true");
  refused(nn::Sequential(Sigmoid()), {}, "must hold a module that can be quantized");
  CHECK_THROWS_WITH(prepare(*Conv2d(3, 4, 1)), Catch::Contains("got a single Conv2d"));
  CHECK_THROWS_WITH(prepare(*nn::ConvBNReLU2d(Conv2dOptions(3, 4, 1))),
                    Catch::Contains("got a single Fused"));  // and its batch norm is not a layer
  nn::Sequential net = make_prepared();
  CHECK_THROWS_WITH(prepare(*net), Catch::Contains("already prepared"));
  CHECK_THROWS_WITH(fuse_modules(*net, {{"conv", "block.relu"}}), Catch::Contains("consumed by"));
  convert(*net);
  CHECK_THROWS_WITH(prepare(*net), Catch::Contains("already converted"));
  CHECK_THROWS_WITH(convert(*net), Catch::Contains("already converted"));
  CHECK_THROWS_WITH(convert(*test::make_net()), Catch::Contains("call prepare first"));
  CHECK_THROWS_WITH(set_fake_quantize(*net, nn::FakeQuantState::kQat),
                    Catch::Contains("must be prepared"));
}

TEST_CASE("what convert cannot deploy is refused and changes nothing", "[nn][quantize]") {
  nn::Sequential net(nn::QuantStub(), Conv2d(3, 4, 1),
                     BatchNorm2d(BatchNormOptions(4).track_running_stats(false)),
                     nn::DeQuantStub());
  fuse_modules(*net, {{"1", "2"}});
  prepare(*net);
  net->forward(image());
  const auto children = net->children();
  CHECK_THROWS_WITH(convert(*net), Catch::Contains("convert: 1: its batch norm has no running"));
  CHECK(net->children() == children);
  nn::Sequential broken(nn::QuantStub(), Conv2d(3, 4, 1), nn::DeQuantStub());
  prepare(*broken);
  broken->forward(image());
  broken->named_parameters()["1.weight"].data().fill_(std::numeric_limits<float>::quiet_NaN());
  CHECK_THROWS_WITH(convert(*broken), Catch::Contains("convert: 1: 'weight' must be finite"));
}

TEST_CASE("data that is not quantized is refused by name", "[nn][quantize]") {
  const bool converted = GENERATE(false, true);
  nn::Sequential net(nn::QuantStub(), Linear(3, 3), ReLU(), Linear(3, 3), nn::DeQuantStub());
  prepare(*net);
  net->forward(torch::randn({2, 3}));
  if (converted) convert(*net);
  const auto layer = [&](std::size_t i) { return net[i]->as<nn::Layer>(); };
  const torch::Tensor q = layer(0)->forward(torch::randn({2, 3}));
  CHECK_THROWS_WITH(layer(1)->forward(torch::randn({2, 3})),
                    Catch::Contains("1: 'input' must be quantized, got a float32 tensor"));
  CHECK_THROWS_WITH(layer(3)->forward(q + 1), Catch::Contains("tensor without a grid"));
  CHECK_THROWS_WITH(layer(4)->forward(torch::randn({2, 3})), Catch::Contains("4: 'input'"));
  CHECK_THROWS_WITH(layer(0)->forward({}), Catch::Contains("0: 'input' must be a tensor"));
  CHECK_THROWS_WITH(layer(1)->forward({}), Catch::Contains("1: 'input' must be a tensor"));
  q.add_(1);
  CHECK_THROWS_WITH(layer(1)->forward(q), Catch::Contains("was changed in place"));
  const torch::Tensor bad = torch::full({2, 3}, std::numeric_limits<float>::quiet_NaN());
  if (converted) CHECK_THROWS_WITH(layer(0)->forward(bad), Catch::StartsWith("0: quantize"));
}

TEST_CASE("a layer called with tensors of two grids reads each by its own", "[nn][quantize]") {
  struct NetImpl : nn::Fusable<NetImpl> {
    NetImpl() { reset(); }
    void reset() override {
      small = slot("small", nn::QuantStub());
      large = slot("large", nn::QuantStub());
      head = slot("head", Conv2d(3, 2, 1));
      cat = functional("cat");
      dequant = slot("dequant", nn::DeQuantStub());
    }
    torch::Tensor forward(torch::Tensor x) {
      return dequant(cat->cat({head(small(x)), head(large(x * 10))}, 0));
    }
    nn::Slot small, large, head, dequant;
    nn::FloatFunctional cat;
  };
  auto net = std::make_shared<NetImpl>();
  const torch::Tensor x = image();
  const torch::Tensor expected = net->forward(x);
  prepare(*net, default_calib_qconfig());
  for (int i = 0; i < 2; ++i) net->forward(x);
  net->eval();
  const torch::Tensor y = net->forward(x);
  CHECK(test::difference(y, expected) < 0.03 * expected.abs().max().item<double>());
  convert(*net);
  CHECK(torch::equal(net->forward(x), y));
}
