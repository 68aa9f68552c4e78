// Layers besides the fused family: a batch norm alone and stubs of a known range; custom modules.
#include <torch/serialize.h>

#include <algorithm>
#include <limits>
#include <sstream>

#include "catch.h"
#include "nn_models.h"

namespace {

using namespace horizon;    // NOLINT
using namespace torch::nn;  // NOLINT

nn::Sequential copy_of(const nn::Sequential& net) {
  return nn::Sequential(std::dynamic_pointer_cast<nn::SequentialImpl>(net->clone()));
}

nn::Sequential norm_net(BatchNormOptions options) {
  nn::Sequential net(nn::QuantStub(), MaxPool2d(2), BatchNorm2d(options.num_features(3)), ReLU(),
                     nn::DeQuantStub());
  test::stir(*net);
  return net;
}

}  // namespace

TEST_CASE("a batch norm on its own is an affine map of codes", "[nn][quantize]") {
  const bool affine = GENERATE(false, true);
  const auto preset = GENERATE(quant::Preset::kHorizon, quant::Preset::kX86);
  torch::manual_seed(11);
  nn::Sequential net = norm_net(BatchNormOptions(1).affine(affine));
  const torch::Tensor x = torch::randn({4, 3, 6, 6});
  const torch::Tensor live = copy_of(net)->forward(x);
  const torch::Tensor mean = net->named_buffers()["2.running_mean"];
  prepare(*net, default_calib_qconfig(preset));
  CHECK(net->named_buffers()["2.running_mean"].is_same(mean));
  net->train();
  const torch::Tensor trained = net->forward(x);
  CHECK(test::difference(trained, live) < 0.1);  // four steps of a range of 6: 4 * 6 / 255
  CHECK(net->named_buffers()["2.num_batches_tracked"].item<int64_t>() == 1);
  if (affine) {
    trained.square().sum().backward();
    CHECK(net->named_parameters()["2.weight"].grad().abs().max().item<float>() > 0);
  }
  freeze_bn_stats(*net);
  net->train();
  net->forward(x);
  CHECK(net->named_buffers()["2.num_batches_tracked"].item<int64_t>() == 1);
  net->eval();
  const torch::Tensor y = net->forward(x);
  CHECK(y.abs().max().item<float>() > 0);
  nn::Sequential copy = copy_of(net), int8 = copy_of(net);
  copy->to(torch::kDouble);
  CHECK(copy->named_buffers()["2.num_batches_tracked"].scalar_type() == torch::kLong);
  copy->to(torch::kFloat);
  CHECK(torch::equal(copy->forward(x), y));
  convert(*int8);
  CHECK(torch::equal(int8->forward(x), y));
  CHECK(torch::equal(copy_of(int8)->forward(x), y));
  std::vector<std::string> names;
  for (const auto& [name, tensor] : state_dict(*int8)) {
    if (name.starts_with("2.")) names.push_back(name);
  }
  CHECK(names == std::vector<std::string>{"2.bias", "2.bn_scale", "2.scale", "2.zero_point"});
  nn::Sequential other = norm_net(BatchNormOptions(1).affine(affine));
  prepare(*other, default_calib_qconfig(preset));
  other->forward(x * 3);
  convert(*other);
  std::stringstream file;
  torch::save(int8, file);
  torch::load(other, file);
  CHECK(torch::equal(other->forward(x), y));
}

TEST_CASE("a batch norm on its own that cannot be deployed is refused", "[nn][quantize]") {
  nn::Sequential net(nn::QuantStub(), BatchNorm1d(BatchNormOptions(3).track_running_stats(false)),
                     nn::DeQuantStub());
  prepare(*net);
  const torch::Tensor x = torch::randn({5, 3, 7});
  net->forward(x);
  net->eval();
  CHECK(net->forward(x).sizes() == x.sizes());
  CHECK_THROWS_WITH(convert(*net), Catch::Contains("convert: 1: the batch norm has no running"));
  nn::Sequential broken = norm_net(BatchNormOptions(1));
  prepare(*broken);
  broken->forward(torch::randn({4, 3, 6, 6}));
  broken->named_parameters()["2.weight"].data().fill_(std::numeric_limits<float>::infinity());
  CHECK_THROWS_WITH(convert(*broken), Catch::Contains("convert: 2: 'bn_scale' and 'bias' must be"));
}

TEST_CASE("a stub of a known range never moves", "[nn][quantize]") {
  // Codes of the symmetric presets end at 127: 0.25 * 127 = 31.75.
  const bool affine = GENERATE(false, true);
  nn::Sequential net(affine ? nn::QuantStub(0.25, 100) : nn::QuantStub(0.25), nn::DeQuantStub());
  CHECK(torch::equal(copy_of(net)->forward(torch::ones({1})), torch::ones({1})));
  nn::Sequential copied = copy_of(net);
  const auto preset = affine ? quant::Preset::kX86 : quant::Preset::kHorizon;
  prepare(*copied, default_qat_qconfig(preset));
  copied->train();
  const torch::Tensor x = torch::tensor({0.3, 1000.0, -1000.0});
  const torch::Tensor expected = affine ? torch::tensor({0.25, 38.75, -25.0})   // (255 - 100) / 4
                                        : torch::tensor({0.25, 31.75, -32.0});  // 127 / 4, 128 / 4
  for (int i = 0; i < 2; ++i) CHECK(torch::equal(copied->forward(x), expected));
  copied = copy_of(copied);
  copied->eval();
  CHECK(torch::equal(copied->forward(x), expected));
  convert(*copied);
  CHECK(torch::equal(copied->forward(x), expected));
}

TEST_CASE("grids that a stub cannot have are refused", "[nn][quantize]") {
  CHECK_THROWS_WITH(nn::QuantStub(0.0), Catch::Contains("'scale' must be finite and positive"));
  CHECK_THROWS_WITH(nn::QuantStub(std::numeric_limits<double>::infinity()),
                    Catch::Contains("got inf"));
  nn::Sequential net(nn::QuantStub(0.5, 3), nn::DeQuantStub());
  CHECK_THROWS_WITH(prepare(*net), Catch::Contains("prepare: 0: FakeQuantize: 'zero_point' must be "
                                                   "0 on the symmetric grid of horizon, got 3"));
  nn::Sequential large(nn::QuantStub(0.5, 256), nn::DeQuantStub());
  CHECK_THROWS_WITH(prepare(*large, default_qat_qconfig(quant::Preset::kX86)),
                    Catch::Contains("in [0, 255], got 256"));
}

TEST_CASE("a module that registers its slots in its constructor is not cloned by halves",
          "[nn][fuse]") {
  struct NetImpl : nn::Fusable<NetImpl> {
    NetImpl() { conv = slot("conv", Conv2d(3, 4, 1)); }
    void reset() override {}
    torch::Tensor forward(torch::Tensor x) { return conv(x); }
    nn::Slot conv;
  };
  const auto net = std::make_shared<NetImpl>();
  const auto conv = net->conv.ptr();
  CHECK_THROWS_WITH(net->clone(), Catch::Contains("clone: reset() of Net must register 'conv'"));
  CHECK(net->conv.ptr() == conv);
  CHECK(net->named_children()["conv"] == conv);
}

TEST_CASE("a null child is refused before torch follows it", "[nn][quantize]") {
  nn::Sequential net;
  net->push_back(nn::QuantStub());
  net->push_back(std::shared_ptr<Conv2dImpl>());
  const auto refused = Catch::Contains("'1' of Sequential must be a module, got null");
  CHECK_THROWS_WITH(prepare(*net), refused);
  CHECK_THROWS_WITH(convert(*net), refused);
  CHECK_THROWS_WITH(state_dict(*net), refused);
  CHECK_THROWS_WITH(freeze_bn_stats(*net), refused);
  CHECK_THROWS_WITH(set_fake_quantize(*net, nn::FakeQuantState::kQat), refused);
}

TEST_CASE("a model is built, fused, calibrated and converted in inference mode", "[nn][quantize]") {
  const c10::InferenceMode inference;
  nn::Sequential net = test::make_net();
  net->eval();
  const torch::Tensor x = torch::randn({2, 3, 8, 8});
  const torch::Tensor expected = net->forward(x);
  fuse_modules(*net, test::kNetGroups);
  CHECK(test::difference(net->forward(x), expected) < 1e-5);
  prepare(*net, default_calib_qconfig());
  set_fake_quantize(*net, nn::FakeQuantState::kCalibration);
  net->forward(x);
  set_fake_quantize(*net, nn::FakeQuantState::kValidation);
  const torch::Tensor y = net->forward(x);
  nn::Sequential int8 = copy_of(net);
  {
    const c10::InferenceMode outside(false);
    convert(*int8);
  }
  CHECK(torch::equal(int8->forward(x), y));
  std::stringstream file;
  torch::save(int8, file);
  torch::load(int8, file);
  CHECK(torch::equal(int8->forward(x), y));
}

TEST_CASE("a converted layer holds its weight once and saves it as codes", "[nn][quantize]") {
  nn::Sequential net(nn::QuantStub(), Conv2d(Conv2dOptions(32, 16, 3)), nn::DeQuantStub());
  prepare(*net);
  net->forward(torch::randn({1, 32, 5, 5}));
  convert(*net);
  const std::vector<torch::Tensor> buffers = net->buffers();
  const auto is_codes = [](const torch::Tensor& t) { return t.scalar_type() == torch::kChar; };
  CHECK(std::count_if(buffers.begin(), buffers.end(), is_codes) == 1);
  auto state = state_dict(*net);
  CHECK(state.at("1.weight").sizes() == torch::IntArrayRef({16, 32, 3, 3}));
  CHECK_FALSE(state.contains("1.packed_weight"));
  state["1.weight"] = torch::randint(-127, 128, {16, 32, 3, 3}, torch::kChar);
  load_state_dict(*net, state);
  CHECK(torch::equal(state_dict(*net).at("1.weight"), state["1.weight"]));
}

TEST_CASE("a file of a converted layer of another shape leaves the layer alone", "[nn][quantize]") {
  const auto make = [](int64_t width, int64_t kernel) {
    nn::Sequential net(nn::QuantStub(), Conv2d(3, width, kernel), nn::DeQuantStub());
    prepare(*net);
    net->forward(torch::randn({1, 3, 5, 5}));
    convert(*net);
    return net;
  };
  nn::Sequential net = make(4, 1), other = make(8, 3);
  std::map<std::string, torch::Tensor> before;
  for (const auto& [name, tensor] : state_dict(*net)) before[name] = tensor.clone();
  std::stringstream file;
  torch::save(other, file);
  CHECK_THROWS_WITH(torch::load(net, file),
                    Catch::Contains("1: load_state_dict: 'bias' must have shape [4], got [8]"));
  for (const auto& [name, tensor] : state_dict(*net)) {
    if (name.starts_with("1.")) CHECK(torch::equal(tensor, before.at(name)));
  }
}
