// The integer operations through their C++ entries.
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>

#include <string>
#include <tuple>

#include "catch.h"
#include "ops/quantized_affine.h"
#include "ops/quantized_binary.h"
#include "ops/quantized_cat.h"
#include "ops/quantized_conv.h"
#include "ops/quantized_pool.h"

namespace horizon::ops {
namespace {

at::Tensor scale(double value) { return at::scalar_tensor(value, at::kFloat); }
at::Tensor point(int64_t value) { return at::scalar_tensor(value, at::kInt); }

at::Tensor ramp(at::IntArrayRef sizes) {
  return at::arange(c10::multiply_integers(sizes), at::kLong)
      .remainder(251)
      .to(at::kByte)
      .view(sizes);
}

at::Tensor one_by_one(const at::Tensor& x, const std::optional<at::Tensor>& skip,
                      std::optional<double> output_scale, int64_t activation) {
  const at::Tensor weight = at::ones({2, x.size(1), 1, 1}, at::kChar);
  const auto given = [](bool yes, const at::Tensor& t) {
    return yes ? std::optional<at::Tensor>(t) : std::nullopt;
  };
  return quantized_conv(x, scale(0.5), point(100), weight, at::full({2}, 0.25, at::kFloat),
                        at::ones({2}, at::kDouble), at::ones({2}, at::kDouble), skip,
                        given(skip.has_value(), scale(1.0)), given(skip.has_value(), point(7)),
                        given(output_scale.has_value(), scale(output_scale.value_or(1.0))),
                        given(output_scale.has_value(), point(10)), /*base=*/0, {1, 1}, {0, 0},
                        {1, 1}, {0, 0}, 1, activation);
}

TEST_CASE("a 1x1 convolution of codes in numbers", "[integer]") {
  // Sum of (q - 100): (101 - 100) + (90 - 100) + (133 - 100) = 24; 24 * 0.5 * 0.25 + 1 = 4.
  const at::Tensor x = at::zeros({1, 3, 1, 1}, at::kByte);
  x[0][0] = 101;
  x[0][1] = 90;
  x[0][2] = 133;
  CHECK(one_by_one(x, std::nullopt, std::nullopt, 0).eq(4.0).all().item<bool>());
  // 4 / 0.5 + 10 = 18; relu6 stops at 6 / 0.5 + 10 = 22 once the skip adds 5 - 7 or 40 - 7.
  CHECK(one_by_one(x, std::nullopt, 0.5, 0).eq(18).all().item<bool>());
  CHECK(one_by_one(x, at::full({1}, 5, at::kByte), 0.5, 2).eq(14).all().item<bool>());
  CHECK(one_by_one(x, at::full({1}, 40, at::kByte), 0.5, 2).eq(22).all().item<bool>());
  CHECK(one_by_one(x, at::full({1}, 0, at::kByte), 0.5, 1).eq(10).all().item<bool>());
}

TEST_CASE("sums and products of codes in numbers", "[integer]") {
  const at::Tensor a = at::full({2, 3}, 140, at::kByte);
  const at::Tensor b = at::full({3}, 110, at::kByte);
  const auto tail = std::make_tuple(scale(0.25), point(50));
  // (140 - 128) * 0.5 + (110 - 100) * 0.25 = 8.5; 8.5 / 0.25 + 50 = 84. With minus: 3.5 gives 64.
  const auto add = [&](double alpha) {
    return quantized_add(a, scale(0.5), point(128), b, scale(0.25), point(100), std::get<0>(tail),
                         std::get<1>(tail), 0, alpha);
  };
  CHECK(add(1.0).eq(84).all().item<bool>());
  CHECK(add(-1.0).eq(64).all().item<bool>());
  // 6 * 2.5 = 15; 15 / 0.25 + 50 = 110. Relu6: 6 / 0.25 + 50 = 74.
  const auto mul = [&](int64_t activation) {
    return quantized_mul(a, scale(0.5), point(128), b, scale(0.25), point(100), std::get<0>(tail),
                         std::get<1>(tail), activation);
  };
  CHECK(mul(0).eq(110).all().item<bool>());
  CHECK(mul(2).eq(74).all().item<bool>());
}

TEST_CASE("maps, joins and averages of codes in numbers", "[integer]") {
  const at::Tensor q = ramp({1, 2, 2, 2});  // 0 .. 7
  const at::Tensor two = at::full({1}, 2.0, at::kDouble);
  // (q * 0.5 * 2 + 2) / 0.5 + 3 = 2 q + 7.
  CHECK(at::equal(quantized_affine(q, scale(0.5), point(0), two, two, scale(0.5), point(3), 0),
                  q.mul(2).add(7)));
  // Another grid doubles the first operand; the second is copied.
  const at::Tensor joined = quantized_cat({q, q}, {scale(1.0), scale(0.5)}, {point(0), point(0)}, 1,
                                          scale(0.5), point(0));
  CHECK(at::equal(joined.slice(1, 0, 2), q.mul(2)));
  CHECK(at::equal(joined.slice(1, 2, 4), q));
  // Means 1.5 and 5.5 of 2x2 windows; half as large a scale: 3 and 11.
  const at::Tensor pooled = quantized_avg_pool2d(q, scale(1.0), point(0), {2}, {}, {0}, false, true,
                                                 std::nullopt, scale(0.5), point(0));
  CHECK(at::equal(pooled.flatten(), at::arange(3, 12, 8, at::kByte)));
  CHECK(at::equal(
      quantized_adaptive_avg_pool2d(q, scale(1.0), point(0), {1, 1}, scale(0.5), point(0)),
      pooled));
  CHECK(at::equal(quantized_mean(q, scale(1.0), point(0), {2, 3}, true, scale(0.5), point(0)),
                  pooled));
}

TEST_CASE("errors of the C++ entries are those of Python", "[integer]") {
  const at::Tensor q = ramp({2, 3});
  std::string message;
  try {
    quantized_add(q, scale(0.5), point(256), q, scale(0.5), point(0), scale(0.5), point(0), 0, 1.0);
  } catch (const c10::ValueError& error) {
    message = error.what_without_backtrace();
  }
  CHECK(message == "quantized_add: 'a_zero_point' must be in [0, 255], got 256");
}

}  // namespace
}  // namespace horizon::ops
