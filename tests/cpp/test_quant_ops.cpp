#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <cmath>
#include <limits>
#include <string>

#include "catch.h"
#include "ops/codes_io.h"
#include "ops/fake_quantize.h"
#include "ops/fold_batch_norm.h"
#include "ops/observe.h"
#include "ops/quantize_activation.h"
#include "ops/quantizer.h"
#include "ops/straight_through.h"
#include "ops/weights.h"

namespace ops = horizon::ops;

namespace {

at::Tensor number(double value) { return at::scalar_tensor(value, at::kFloat); }
at::Tensor integer(int64_t value) { return at::scalar_tensor(value, at::kInt); }

ops::QuantizerArgs quantizer() {
  ops::QuantizerArgs q;
  q.min_val = number(0);
  q.max_val = number(0);
  q.observed = at::scalar_tensor(0, at::kLong);
  q.scale = number(1);
  q.zero_point = integer(0);
  q.observe = true;
  q.fake_quantize = true;
  return q;
}

template <typename Body>
bool fails_with(const Body& body, const std::string& text) {
  try {
    body();
  } catch (const c10::Error& error) {
    return std::string(error.what()).find(text) != std::string::npos;
  }
  return false;
}

at::Tensor values(std::initializer_list<float> list) {
  return at::tensor(at::ArrayRef<float>(list));
}

}  // namespace

TEST_CASE("a range found elsewhere moves the quantizer in place", "[quant]") {
  ops::QuantizerArgs q = quantizer();
  ops::observe_range(q, -255.0, 10.0);
  CHECK(q.min_val->item<float>() == -255.0F);
  CHECK(q.max_val->item<float>() == 10.0F);
  CHECK(q.observed->item<int64_t>() == 1);
  CHECK(q.scale->item<float>() == 2.0F);  // 255 / 127.5
  ops::observe_range(q, -255.0, 110.0);
  CHECK(q.max_val->item<float>() == std::fma(0.01F, 100.0F, 10.0F));

  const ops::GridValues grid = ops::read_grid("test", q);
  CHECK(grid.scale == 2.0F);
  CHECK(grid.zero_point == 0);
  CHECK(grid.stored_zero_point == 128);
  const auto [scale, zero_point] = ops::returned_qparams(grid);
  CHECK(scale.item<float>() == 2.0F);
  CHECK(zero_point.item<int32_t>() == 128);
}

TEST_CASE("a range that is not finite is refused by name", "[quant]") {
  ops::QuantizerArgs q = quantizer();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(fails_with([&] { ops::observe_range(q, nan, nan, "skip"); },
                   "observe: 'skip' must be finite, got nan"));
  CHECK(fails_with([&] { ops::observe_range(q, 0.0, 1e300); }, "got inf"));
  CHECK(q.observed->item<int64_t>() == 0);
  q.skip_nonfinite = true;
  ops::observe_range(q, nan, nan);
  CHECK(q.observed->item<int64_t>() == 0);
}

TEST_CASE("quantizers say whether they observe and quantize", "[quant]") {
  ops::QuantizerArgs q = quantizer();
  CHECK((q.defined() && q.observes() && q.quantizes()));
  q.observer = 2;
  CHECK_FALSE(q.observes());
  q.fake_quantize = false;
  CHECK_FALSE(q.quantizes());
  CHECK_FALSE(ops::QuantizerArgs{}.defined());
}

TEST_CASE("operators are called from C++ with gradients", "[quant]") {
  at::Tensor x = values({0.26F, 1e6F, -1e6F}).requires_grad_();
  const at::Tensor y = ops::fake_quantize_per_tensor(x, number(0.5), integer(0), -128, 127);
  CHECK(at::equal(y, values({0.5F, 63.5F, -64.0F})));
  y.sum().backward();
  CHECK(at::equal(x.grad(), values({1, 0, 0})));

  x.mutable_grad() = at::Tensor();
  const at::Tensor z = ops::fake_quantize_per_channel(x.view({3, 1}), values({0.5F, 1e6F, 1e6F}),
                                                      at::zeros({3}, at::kInt), 0, -128, 127);
  CHECK(at::equal(z.flatten(), values({0.5F, 1e6F, -1e6F})));
  z.sum().backward();
  CHECK(at::equal(x.grad(), at::ones({3})));
}

TEST_CASE("an activation is observed, then quantized on the updated grid", "[quant]") {
  const ops::QuantizerArgs q = quantizer();
  const at::Tensor x = values({-255.0F, 3.1F, 10.0F}).requires_grad_();
  const auto [y, scale, zero_point] = ops::quantize_activation(x, q);
  CHECK(at::equal(y, values({-256.0F, 4.0F, 10.0F})));  // rint(-127.5) = -128; rint(1.55) = 2
  CHECK(scale.item<float>() == 2.0F);
  CHECK(zero_point.item<int32_t>() == 128);
  CHECK(y.requires_grad());

  ops::QuantizerArgs same = quantizer();
  ops::observe_(x, *same.min_val, *same.max_val, *same.observed, *same.scale, *same.zero_point, 0,
                0, 0.01, false);
  CHECK(at::equal(*same.scale, *q.scale));
}

TEST_CASE("weights are quantized per output channel", "[quant]") {
  // [in = 2, out / groups = 1], two groups: each row is a channel.
  const at::Tensor weight = values({254.0F, -127.0F}).view({2, 1, 1, 1});
  const at::Tensor scale = ops::weight_scale(weight, 1, 2);
  CHECK(at::equal(scale, values({2, 1})));
  CHECK(at::equal(ops::quantize_weight(weight, scale, 1, 2).flatten().to(at::kFloat),
                  values({127, -127})));
  CHECK(at::equal(ops::fake_quantize_weight(weight, 1, 2), weight));
  CHECK(fails_with([&] { ops::weight_scale(weight, 7, 1); },
                   "weight_scale: 'base' must be 0 (conv2d)"));
}

TEST_CASE("codes go out and come back", "[quant]") {
  const at::Tensor q = ops::quantize(values({-1.0F, 0.0F, 0.26F}), number(0.5), integer(128));
  CHECK(q.scalar_type() == at::kByte);
  CHECK(at::equal(q.to(at::kFloat), values({126, 128, 129})));
  CHECK(at::equal(ops::dequantize(q, number(0.5), integer(128)), values({-1, 0, 0.5F})));
  CHECK(ops::dequantize(q, number(0.5), integer(128), at::kHalf).scalar_type() == at::kHalf);
  CHECK(fails_with([&] { ops::quantize(values({std::nanf("")}), number(0.5), integer(128)); },
                   "quantize: 'x' must be free of NaN, got nan"));
}

TEST_CASE("straight_through hands the gradient to the surrogate", "[quant]") {
  const at::Tensor surrogate = values({1, 2}).requires_grad_();
  const at::Tensor y = ops::straight_through(values({5, 6}), surrogate);
  CHECK(at::equal(y, values({5, 6})));
  (y * values({2, 3})).sum().backward();
  CHECK(at::equal(surrogate.grad(), values({2, 3})));
}

TEST_CASE("batch norm is folded in double", "[quant]") {
  const auto [factor, offset] =
      ops::fold_batch_norm(values({2}), values({3}), values({4}), values({5}), values({8}), 1.0, 1);
  // a = 3 / sqrt(9) = 1; 2 * 1 + (4 - 5 * 1) = 1
  CHECK(factor.scalar_type() == at::kDouble);
  CHECK(factor.item<double>() == 1.0);
  CHECK(offset.item<double>() == 1.0);
  const auto [one, bias] = ops::fold_batch_norm(values({2}), {}, {}, {}, {}, 1e-5, 1);
  CHECK(one.item<double>() == 1.0);
  CHECK(bias.item<double>() == 2.0);
}
