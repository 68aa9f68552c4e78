// fuse_modules on torch::nn models.
#include "catch.h"
#include "nn_models.h"

namespace {

using namespace horizon;    // NOLINT
using namespace torch::nn;  // NOLINT

template <class Module>
std::string class_at(const Module& model, const std::string& path) {
  const auto modules = model->named_modules();
  const auto& module = modules[path];
  const auto* group = dynamic_cast<const nn::GroupLayer*>(module.get());
  return group == nullptr ? nn::class_name_of(*module) : group->spec().name();
}

torch::Tensor image(int64_t channels = 3) { return torch::randn({2, channels, 8, 8}); }

}  // namespace

TEST_CASE("a Sequential is fused by subscripts and computes the same", "[nn][fuse]") {
  const bool training = GENERATE(false, true);
  torch::manual_seed(2);
  Sequential net(Conv2d(Conv2dOptions(3, 4, 3)), BatchNorm2d(4), ReLU(), Conv2d(4, 2, 1), ReLU6());
  test::stir(*net);
  net->train(training);
  const torch::Tensor x = image();
  const torch::Tensor before = std::dynamic_pointer_cast<SequentialImpl>(net->clone())->forward(x);
  const torch::Tensor weight = net->at<Conv2dImpl>(0).weight;
  fuse_modules(*net, {{"0", "1", "2"}, {"3", "4"}});
  CHECK(class_at(net, "0") == (training ? "ConvBNReLU2d" : "ConvReLU2d"));
  CHECK(class_at(net, "1") == "Placeholder");
  CHECK(class_at(net, "3") == "ConvReLU62d");
  // A live batch norm keeps the parameters; a fold makes new ones.
  CHECK(net->at<nn::FusedImpl>(0).parameters()[0].is_same(weight) == training);
  CHECK(net->named_children()["0"] == net[0]);
  CHECK(test::difference(net->forward(x), before) < 1e-5);
}

TEST_CASE("lists of modules, nested Sequentials and dictionaries are fused in place",
          "[nn][fuse]") {
  auto inner = nn::Sequential(Conv2d(3, 4, 1), ReLU());
  nn::Sequential outer;
  outer->push_back("inner", inner);
  ModuleList list(Linear(4, 4), BatchNorm1d(4), ReLU());
  ModuleDict dict;
  dict->update({{"conv", Conv2d(4, 4, 1).ptr()}, {"bn", BatchNorm2d(4).ptr()}});
  struct NetImpl : torch::nn::Module {};
  auto net = std::make_shared<NetImpl>();
  net->register_module("outer", outer.ptr());
  net->register_module("list", list);
  net->register_module("dict", dict);
  const torch::Tensor x = image();
  const torch::Tensor before = outer->forward(x);
  fuse_modules(*net, {{"outer.inner.0", "outer.inner.1"},
                      {"list.0", "list.1", "list.2"},
                      {"dict.conv", "dict.bn"}});
  CHECK(class_at(net, "outer.inner.0") == "ConvReLU2d");
  CHECK(torch::equal(outer->forward(x), before));
  CHECK(class_at(net, "list.0") == "LinearBNReLU");
  CHECK(list[0] == net->named_modules()["list.0"]);
  CHECK(dict["conv"] == net->named_modules()["dict.conv"]);
  CHECK(nn::call(*list[0], torch::randn({3, 4})).min().item<float>() >= 0);
}

TEST_CASE("a residual block is fused as written, in either operand order", "[nn][fuse]") {
  const bool skip_first = GENERATE(false, true), training = GENERATE(false, true);
  test::Block block(4, skip_first);
  test::stir(*block);
  block->train(training);
  const torch::Tensor x = image(4);
  const torch::Tensor before =
      test::Block(std::dynamic_pointer_cast<test::BlockImpl>(block->clone()))->forward(x);
  fuse_modules(*block, {{"conv", "bn", "add", "relu"}});
  CHECK(class_at(block, "add") == (training ? "ConvBNAddReLU2d" : "ConvAddReLU2d"));
  CHECK(test::difference(block->forward(x), before) < 1e-5);
  const auto copy = std::dynamic_pointer_cast<test::BlockImpl>(block->clone());
  block->eval();
  copy->eval();
  const torch::Tensor after = block->forward(x);
  CHECK(torch::equal(copy->forward(x), after));
  {
    const torch::NoGradGuard no_grad;
    for (torch::Tensor& p : copy->parameters()) p.zero_();
  }
  CHECK(torch::equal(block->forward(x), after));
  CHECK_FALSE(torch::equal(copy->forward(x), after));
}

TEST_CASE("gradients of a fused block are those of the block", "[nn][fuse]") {
  test::Block block(4);
  block->to(torch::kDouble);
  const auto plain = std::dynamic_pointer_cast<test::BlockImpl>(block->clone());
  fuse_modules(*block, {{"conv", "bn", "add", "relu"}});
  const torch::Tensor x = image(4).to(torch::kDouble);
  block->forward(x).square().sum().backward();
  plain->forward(x).square().sum().backward();
  const auto fused = block->named_parameters();
  const auto own = plain->named_parameters();
  CHECK(test::difference(fused["add.weight"].grad(), own["conv.weight"].grad()) < 1e-9);
  CHECK(test::difference(fused["add.bn.weight"].grad(), own["bn.weight"].grad()) < 1e-9);
}

TEST_CASE("both operands through the convolution give twice its result", "[nn][fuse]") {
  test::Block block(4);
  block->eval();
  const torch::Tensor x = image(4);
  const torch::Tensor z = block->bn(block->conv(x));
  fuse_modules(*block, {{"conv", "bn", "add"}});
  const torch::Tensor y = block->bn(block->conv(x));
  CHECK(test::difference(block->add->add(y, y), z + z) < 1e-5);
  CHECK_THROWS_WITH(block->add->add(y, x), Catch::Contains("used by add.add a second time"));
  const torch::Tensor again = block->bn(block->conv(x));
  CHECK(test::difference(block->add->add_relu(again, again), torch::relu(z + z)) < 1e-5);
}

TEST_CASE("misuse of a pending result is refused by name", "[nn][fuse]") {
  test::Block block(4), other(4);
  fuse_modules(*block, {{"conv", "bn", "add", "relu"}});
  fuse_modules(*other, {{"conv", "bn", "add", "relu"}});
  const torch::Tensor x = image(4).requires_grad_();
  const torch::Tensor z = block->conv(x), y = block->bn(z);
  const auto used = Catch::Contains("result of conv used before its add");
  CHECK_THROWS_WITH(y.mean(), used);
  CHECK_THROWS_WITH(y + 1, used);
  CHECK_THROWS_WITH(x + y, used);
  CHECK_THROWS_WITH(torch::relu(y), used);
  CHECK_THROWS_WITH(y.sizes(), used);
  CHECK_THROWS_WITH(y.size(0), used);
  CHECK_THROWS_WITH(y.clone(), used);
  CHECK_THROWS_WITH(y.detach(), used);
  CHECK_THROWS_WITH(torch::cat({x, y}), used);
  CHECK_THROWS_WITH(y.view({-1}), used);
  CHECK_THROWS_WITH(torch::conv2d(y, torch::randn({1, 4, 1, 1})), used);
  CHECK_THROWS_WITH(block->conv(y), used);
  CHECK_THROWS_WITH(block->relu(y), used);
  CHECK_THROWS_WITH(other->bn(y), used);
  CHECK_THROWS_WITH(other->add->add(y, x), used);
  CHECK_THROWS_WITH(block->add->add(z, x), Catch::Contains("before bn, which was fused with it"));
  CHECK_THROWS_WITH(block->add->add(x, x),
                    Catch::Contains("add.add: one operand must be the result of conv"));
  CHECK_THROWS_WITH(block->bn(x), Catch::Contains("must be called on the result of conv only"));
  CHECK_THROWS_WITH(block->add->cat({x, x}), Catch::Contains("got a call of cat"));
  const torch::Tensor late = block->bn(block->conv(x));
  {
    const torch::NoGradGuard no_grad;
    CHECK_THROWS_WITH(block->add->add(late, x), Catch::Contains("under the same grad mode"));
  }
  const torch::Tensor changed = image(4);
  const torch::Tensor pending = block->bn(block->conv(changed));
  changed.add_(1);
  CHECK_THROWS_WITH(block->add->add(pending, changed),
                    Catch::Contains("the input of conv was changed in place"));
}

TEST_CASE("refusals name the place and change nothing", "[nn][fuse]") {
  struct PaddedConvImpl : Conv2dImpl {
    using Conv2dImpl::Conv2dImpl;
  };
  struct PlainImpl : torch::nn::Module {
    PlainImpl() {
      conv = register_module("conv", Conv2d(3, 4, 1));
      relu = register_module("relu", ReLU());
    }
    Conv2d conv{nullptr};
    ReLU relu{nullptr};
  };
  Sequential net(Conv2d(3, 4, 1), BatchNorm2d(4), ReLU(), std::make_shared<PaddedConvImpl>(4, 4, 1),
                 ReLU(), Hardtanh(), Conv2d(4, 4, 1), BatchNorm2d(5));
  const auto children = net->children();
  const auto refused = [&](const std::vector<std::vector<std::string>>& lists, const char* text) {
    CHECK_THROWS_WITH(fuse_modules(*net, lists), Catch::Contains(text));
    CHECK(net->children() == children);
  };
  refused({{"0", "1"}, {"2", "9"}}, "the model (Sequential) has no child '9'");
  refused({{"0", "2"}, {"0", "1"}}, "'0' of ['0', '1'] was consumed by an earlier list");
  refused({{"3", "4"}}, "'3' is a PaddedConv, a subclass of Conv2d");
  refused({{"0", "5"}}, "but '5' is a Hardtanh(-1, 1)");
  refused({{"6", "7"}}, "'7' must normalize the 4 channels of '6', got 5");
  refused({}, "at least one list of names");
  CHECK_THROWS_WITH(fuse_modules(*net, {{"0", "1"}}, {static_cast<fuse::BatchNormMode>(3)}),
                    Catch::Contains("'mode' must be kAuto, kFuse or kKeep, got 3"));
  CHECK_THROWS_AS(fuse_modules(*net, {{"3", "4"}}), c10::TypeError);
  CHECK_THROWS_AS(fuse_modules(*net, {{"0", "5"}}), c10::NotImplementedError);
  CHECK_THROWS_AS(fuse_modules(*net, {{"0", "9"}}), c10::ValueError);
  const auto plain = std::make_shared<PlainImpl>();
  CHECK_THROWS_WITH(fuse_modules(*plain, {{"conv", "relu"}}),
                    Catch::Contains("derive Plain from horizon::nn::Fusable"));
  CHECK_THROWS_WITH(prepare(*plain), Catch::Contains("derive Plain from horizon::nn::Fusable"));
  plain->register_module("none", std::shared_ptr<torch::nn::Module>());
  CHECK_THROWS_WITH(fuse_modules(*plain, {{"conv", "none"}}), Catch::Contains("no child 'none'"));
  CHECK_THROWS_WITH(nn::Slot()(image()), Catch::Contains("called before it was registered"));
  net[1]->eval();
  fuse_modules(*net, {{"0", "1"}});
  net->train();
  CHECK_FALSE(net->at<nn::FusedImpl>(0).bn()->is_training());
}

TEST_CASE("a group in two places stays one in both; half a group there is refused", "[nn][fuse]") {
  const auto conv = Conv2d(3, 3, 1).ptr();
  const auto relu = ReLU().ptr();
  nn::Sequential first(conv, relu), second(conv, relu);
  nn::Sequential net(first, second);
  fuse_modules(*net, {{"0.0", "0.1"}});
  CHECK(first[0] == second[0]);
  CHECK(class_at(net, "1.0") == "ConvReLU2d");
  CHECK(class_at(net, "1.1") == "Placeholder");
  Sequential alone(conv, relu, conv);
  CHECK_THROWS_WITH(fuse_modules(*alone, {{"0", "1"}}), Catch::Contains("'0' is also '2'"));
}

TEST_CASE("a fold that takes tied weights apart is warned of", "[nn][fuse]") {
  struct Handler : c10::WarningHandler {
    std::string text;
    void process(const c10::Warning& warning) override { text += warning.msg(); }
  };
  Sequential net(Conv2d(3, 3, 1), BatchNorm2d(3), Conv2d(3, 3, 1), BatchNorm2d(3));
  torch::nn::Module tied;
  tied.register_parameter("weight", net->at<Conv2dImpl>(0).weight);
  net->register_module("tied", std::make_shared<torch::nn::Module>(tied));
  net->eval();
  Handler handler;
  {
    const c10::WarningUtils::WarningHandlerGuard guard(&handler);
    fuse_modules(*net, {{"0", "1"}, {"2", "3"}});
  }
  CHECK(handler.text.find("folding ['0', '1'] unties '0.weight' from 'tied.weight'") !=
        std::string::npos);
  CHECK(handler.text.find("['2', '3']") == std::string::npos);
}

TEST_CASE("what is fused in inference mode can be trained", "[nn][fuse]") {
  Sequential net(Conv2d(3, 3, 1), BatchNorm2d(3));
  net->eval();
  {
    const c10::InferenceMode inference;
    fuse_modules(*net, {{"0", "1"}});
  }
  net->forward(image()).sum().backward();
  CHECK(net->parameters()[0].grad().defined());
}
