// The size of a transposed convolution's result, asked for at the call, in every stage.
#include "catch.h"
#include "nn_models.h"

namespace {

using namespace horizon;    // NOLINT
using namespace torch::nn;  // NOLINT

/// up(x, size) alone, or added to a skip of that size.
struct UpNetImpl : nn::Fusable<UpNetImpl> {
  explicit UpNetImpl(bool adds) : has_add(adds) { reset(); }
  void reset() override {
    quant = slot("quant", nn::QuantStub());
    up =
        slot("up", ConvTranspose2d(ConvTranspose2dOptions(4, 6, 3).stride(3).padding(1).groups(2)));
    bn = slot("bn", BatchNorm2d(6));
    relu = slot("relu", ReLU());
    add = functional("add");
    other = slot("other", nn::QuantStub());
    dequant = slot("dequant", nn::DeQuantStub());
  }
  torch::Tensor forward(const torch::Tensor& x, torch::IntArrayRef size) {
    torch::Tensor y = bn(up(quant(x), size));
    if (has_add) y = add->add(other(torch::ones({6, 1, 1}) * 0.25), y);
    return dequant(relu(y));
  }
  bool has_add;
  nn::Slot quant, up, bn, relu, other, dequant;
  nn::FloatFunctional add;
};
TORCH_MODULE(UpNet);

std::vector<std::string> group_of(bool adds) {
  if (adds) return {"up", "bn", "add", "relu"};
  return {"up", "bn", "relu"};
}

}  // namespace

TEST_CASE("output_size reaches a fused transposed convolution in every stage", "[nn][fuse]") {
  // (5 - 1) * 3 - 2 + 2 + 1 = 13 rows are the fewest, and a stride of 3 makes 15 the most.
  const int64_t rows = GENERATE(13, 14, 15);
  const bool adds = GENERATE(false, true), training = GENERATE(false, true);
  const bool whole = GENERATE(false, true);
  torch::manual_seed(9);
  UpNet net(adds);
  test::stir(*net);
  net->train(training);
  const std::vector<int64_t> size =
      whole ? std::vector<int64_t>{2, 6, rows, 12} : std::vector<int64_t>{rows, 12};
  const torch::Tensor x = torch::randn({2, 4, 5, 4});
  const torch::Tensor expected =
      UpNet(std::dynamic_pointer_cast<UpNetImpl>(net->clone()))->forward(x, {rows, 12});
  CHECK(expected.size(2) == rows);
  fuse_modules(*net, {group_of(adds)});
  CHECK(test::difference(net->forward(x, size), expected) < 1e-5);
  prepare(*net);
  net->train();
  for (int i = 0; i < 3; ++i) CHECK(net->forward(x, size).size(2) == rows);
  net->eval();
  const torch::Tensor y = net->forward(x, size);
  CHECK(y.size(2) == rows);
  convert(*net);
  CHECK(torch::equal(net->forward(x, size), y));
}

TEST_CASE("an output_size that does not fit is refused by name in every stage", "[nn][fuse]") {
  const bool adds = GENERATE(false, true);
  UpNet net(adds);
  const torch::Tensor x = torch::randn({2, 4, 5, 4});
  fuse_modules(*net, {group_of(adds)});
  const auto refuses = [&] {
    CHECK_THROWS_WITH(net->forward(x, {16, 12}),
                      Catch::Contains("in [13, 15] in dimension 0, got 16"));
    CHECK_THROWS_WITH(net->forward(x, {13}), Catch::Contains("must be [H, W] or"));
  };
  refuses();
  prepare(*net);
  net->forward(x, {14, 12});
  net->eval();
  refuses();
  convert(*net);
  refuses();
}

TEST_CASE("only transposed convolutions take an output_size", "[nn][fuse]") {
  test::Block block(4);
  const torch::Tensor x = torch::randn({1, 4, 3, 3});
  CHECK_THROWS_WITH(block->conv(x, {3, 3}), Catch::Contains("must be a ConvTranspose2d"));
  fuse_modules(*block, {{"conv", "bn", "add"}});
  const torch::Tensor y = block->bn(block->conv(x, {3, 3}));
  CHECK_THROWS_WITH(block->add->add(y, x), Catch::Contains("add: 'output_size' must be left out"));
  CHECK_THROWS_WITH(block->bn(x, {3, 3}), Catch::Contains("bn: 'output_size' must be left out"));
  nn::ConvReLU2d conv(Conv2dOptions(4, 4, 1));
  CHECK_THROWS_WITH(nn::call(*conv, x, {3, 3}), Catch::Contains("'output_size' must be left out"));
  nn::ConvTransposeAdd2d up(ConvTranspose2dOptions(4, 4, 2).stride(2));
  CHECK(up->run(x, x.mean(), torch::IntArrayRef({7, 6})).size(2) == 7);
}
