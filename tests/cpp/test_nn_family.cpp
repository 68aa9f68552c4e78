// The fused family as torch::nn modules: against the chain of torch's own modules.
#include <torch/serialize.h>

#include <sstream>

#include "catch.h"
#include "nn_models.h"

namespace {

using namespace horizon;  // NOLINT
using fuse::Activation;
using fuse::Kind;

std::shared_ptr<torch::nn::Module> make_base(Kind base) {
  using namespace torch::nn;  // NOLINT
  if (base == Kind::kConv2d) {
    return Conv2d(Conv2dOptions(4, 6, 3).padding(1).groups(2)).ptr();
  }
  if (base == Kind::kConvTranspose2d) {
    return ConvTranspose2d(ConvTranspose2dOptions(4, 6, 3).stride(2).output_padding(1).groups(2))
        .ptr();
  }
  return Linear(5, 6).ptr();
}

torch::Tensor make_input(Kind base) {
  return base == Kind::kLinear ? torch::randn({7, 5}, torch::kDouble)
                               : torch::randn({2, 4, 5, 6}, torch::kDouble);
}

torch::Tensor chain(torch::nn::Module& base, torch::nn::Module* bn, const torch::Tensor& x,
                    const torch::Tensor& skip, Activation act) {
  torch::Tensor z = nn::call(base, x);
  if (bn != nullptr) z = nn::call(*bn, z);
  if (skip.defined()) z = z + skip;
  if (act == Activation::kReLU) return torch::relu(z);
  return act == Activation::kReLU6 ? torch::clamp(z, 0, 6) : z;
}

std::shared_ptr<torch::nn::Module> make_norm(Kind base) {
  if (base == Kind::kLinear) return torch::nn::BatchNorm1d(6).ptr();
  return torch::nn::BatchNorm2d(6).ptr();
}

torch::Tensor evaluate(nn::FusedImpl& fused, const torch::Tensor& x, const torch::Tensor& skip) {
  return fused.variant().add ? fused.run(x, skip) : fused.forward(x);
}

}  // namespace

TEST_CASE("every variant equals the chain of its parts, in output, gradients and statistics",
          "[nn]") {
  torch::manual_seed(1);
  const Kind base = GENERATE(Kind::kConv2d, Kind::kConvTranspose2d, Kind::kLinear);
  const bool batch_norm = GENERATE(false, true), add = GENERATE(false, true);
  const bool training = GENERATE(false, true);
  const Activation act = GENERATE(Activation::kNone, Activation::kReLU, Activation::kReLU6);
  const auto layer = make_base(base);
  const auto bn = batch_norm ? make_norm(base) : nullptr;
  if (bn) test::stir(*bn);
  nn::FusedImpl fused({base, batch_norm, add, act}, layer->clone(), bn ? bn->clone() : nullptr);
  layer->to(torch::kDouble);
  if (bn) bn->to(torch::kDouble);
  fused.to(torch::kDouble);
  layer->train(training);
  if (bn) bn->train(training);
  fused.train(training);

  const torch::Tensor x = make_input(base);
  const torch::Tensor mine = x.clone().requires_grad_(), theirs = x.clone().requires_grad_();
  const torch::Tensor skip = add ? torch::randn_like(nn::call(*layer, x)) : torch::Tensor();
  const torch::Tensor y = evaluate(fused, mine, skip);
  const torch::Tensor expected = chain(*layer, bn.get(), theirs, skip, act);
  CHECK(torch::equal(y, expected));
  y.square().sum().backward();
  expected.square().sum().backward();
  // The same torch kernels on both sides, so nothing may differ.
  CHECK(torch::equal(mine.grad(), theirs.grad()));
  const auto parameters = fused.named_parameters();
  for (const auto& entry : layer->named_parameters()) {
    CHECK(torch::equal(parameters[entry.key()].grad(), entry.value().grad()));
  }
  if (!bn) return;
  const auto buffers = fused.named_buffers();
  for (const auto& entry : bn->named_buffers()) {
    CHECK(torch::equal(buffers["bn." + entry.key()].to(torch::kDouble),
                       entry.value().to(torch::kDouble)));
  }
  CHECK(buffers["bn.num_batches_tracked"].scalar_type() == torch::kLong);
}

TEST_CASE("a module built by name is the variant that its name says", "[nn]") {
  nn::ConvBNAddReLU62d conv(torch::nn::Conv2dOptions(3, 8, 3).padding(1));
  CHECK(conv->spec().name() == "ConvBNAddReLU62d");
  CHECK(
      conv->run(torch::randn({1, 3, 4, 4}), torch::full({1, 8, 1, 1}, 100.0)).max().item<float>() ==
      6.0F);
  nn::LinearReLU linear(torch::nn::LinearOptions(4, 2));
  CHECK(linear->spec().name() == "LinearReLU");
  CHECK(linear->forward(torch::randn({3, 4})).min().item<float>() >= 0.0F);
  nn::ConvTransposeBN2d transposed(torch::nn::ConvTranspose2dOptions(3, 6, 2).groups(3),
                                   torch::nn::BatchNormOptions(1).eps(0.5));
  CHECK(transposed->bn()->as<torch::nn::BatchNorm2d>()->options.num_features() == 6);
  CHECK(transposed->bn()->as<torch::nn::BatchNorm2d>()->options.eps() == 0.5);
}

TEST_CASE("state has the names that Python's state dicts have", "[nn]") {
  nn::ConvBNReLU2d conv(torch::nn::Conv2dOptions(3, 8, 3));
  std::vector<std::string> names;
  for (const auto& [name, tensor] : state_dict(*conv)) names.push_back(name);
  CHECK(names == std::vector<std::string>{"bias", "bn.bias", "bn.num_batches_tracked",
                                          "bn.running_mean", "bn.running_var", "bn.weight",
                                          "weight"});
}

TEST_CASE("a clone computes the same and shares nothing", "[nn]") {
  nn::ConvBNReLU2d conv(torch::nn::Conv2dOptions(3, 8, 3));
  test::stir(*conv);
  conv->eval();
  const torch::Tensor x = torch::randn({2, 3, 6, 6});
  const torch::Tensor before = conv->forward(x);
  torch::manual_seed(3);
  const torch::Tensor next = torch::rand({1});
  torch::manual_seed(3);
  const auto copy = std::dynamic_pointer_cast<nn::FusedImpl>(conv->clone());
  CHECK(torch::equal(torch::rand({1}), next));  // cloning draws nothing
  REQUIRE(copy != nullptr);
  CHECK_FALSE(copy->is_training());
  CHECK(torch::equal(copy->forward(x), before));
  {
    const torch::NoGradGuard no_grad;
    for (torch::Tensor& p : copy->parameters()) p.zero_();
    for (torch::Tensor& b : copy->buffers()) b.zero_();
  }
  CHECK(torch::equal(conv->forward(x), before));
  CHECK_FALSE(torch::equal(copy->forward(x), before));
}

TEST_CASE("a fused module is saved and loaded by torch::save and torch::load", "[nn]") {
  nn::ConvBNAddReLU2d source(torch::nn::Conv2dOptions(3, 8, 3)),
      target(torch::nn::Conv2dOptions(3, 8, 3));
  test::stir(*source);
  std::stringstream file;
  torch::save(source, file);
  torch::load(target, file);
  source->eval();
  target->eval();
  const torch::Tensor x = torch::randn({2, 3, 6, 6}), skip = torch::randn({2, 8, 4, 4});
  CHECK(torch::equal(target->run(x, skip), source->run(x, skip)));
}

TEST_CASE("a frozen batch norm stays in eval mode through train", "[nn]") {
  const auto conv = std::make_shared<torch::nn::Conv2dImpl>(torch::nn::Conv2dOptions(3, 4, 1));
  const auto bn = std::make_shared<torch::nn::BatchNorm2dImpl>(4);
  nn::FusedImpl fused({Kind::kConv2d, true, false, Activation::kNone}, conv, bn, true);
  fused.train();
  CHECK_FALSE(bn->is_training());
  fused.forward(torch::randn({2, 3, 4, 4}));
  CHECK(bn->num_batches_tracked.item<int64_t>() == 0);
  fused.freeze_statistics(false);
  fused.forward(torch::randn({2, 3, 4, 4}));
  CHECK(bn->num_batches_tracked.item<int64_t>() == 1);
}

TEST_CASE("calls that a fused module does not serve are refused by name", "[nn]") {
  nn::ConvAdd2d add(torch::nn::Conv2dOptions(3, 4, 1));
  const torch::Tensor x = torch::randn({1, 3, 2, 2});
  CHECK_THROWS_WITH(add->forward(x), Catch::Contains("ConvAdd2d is a fused add"));
  CHECK_THROWS_WITH(add->add(x, x), Catch::Contains("must be placed by fuse_modules"));
  CHECK_THROWS_WITH(add->mul(x, x), Catch::Contains("got a call of mul"));
  nn::ConvReLU2d relu(torch::nn::Conv2dOptions(3, 4, 1));
  CHECK_THROWS_WITH(relu->run(x, x), Catch::Contains("ConvReLU2d has no add"));
  CHECK_THROWS_WITH(
      nn::FusedImpl({Kind::kConv2d, false, false, Activation::kNone}, nullptr, nullptr),
      Catch::Contains("'base' must be a module, got null"));
  CHECK_THROWS_WITH(nn::FusedImpl({Kind::kConv2d, true, false, Activation::kNone},
                                  torch::nn::Conv2d(3, 4, 1).ptr(), nullptr),
                    Catch::Contains("'bn' must be a batch norm, got null"));
  CHECK_THROWS_WITH(nn::FusedImpl({Kind::kConv2d, false, false, Activation::kNone},
                                  torch::nn::ReLU().ptr(), nullptr),
                    Catch::Contains("must be a Conv2d, ConvTranspose2d or Linear, got ReLU"));
  nn::LinearBN linear(torch::nn::LinearOptions(3, 4));
  CHECK_THROWS_WITH(linear->forward(torch::randn({2, 5, 3})),
                    Catch::Contains("'input' must be 2-D"));
}

TEST_CASE("a state of another shape or stage is refused whole", "[nn]") {
  nn::ConvReLU2d conv(torch::nn::Conv2dOptions(3, 4, 1));
  auto state = state_dict(*conv);
  const torch::Tensor before = state["weight"].clone();
  state["weight"] = torch::zeros({4, 3, 1, 1}, torch::kChar);
  CHECK_THROWS_WITH(load_state_dict(*conv, state), Catch::Contains("'weight' must be float32"));
  state["weight"] = torch::zeros({4, 3, 2, 2});
  CHECK_THROWS_WITH(load_state_dict(*conv, state), Catch::Contains("must have shape [4, 3, 1, 1]"));
  state.erase("weight");
  state["more"] = before;
  CHECK_THROWS_WITH(load_state_dict(*conv, state),
                    Catch::Contains("missing: [weight], unexpected: [more]"));
  CHECK(torch::equal(state_dict(*conv)["weight"], before));
}
