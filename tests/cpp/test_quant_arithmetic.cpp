#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>

#include "catch.h"
#include "quant/fake_quantize.h"
#include "quant/qparams.h"
#include "quant/rounding.h"

namespace quant = horizon::quant;
using quant::Preset;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kTop = std::numeric_limits<float>::max();

template <typename T>
bool same_bits(T a, T b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

}  // namespace

TEST_CASE("rounding is half to even and keeps what is not a fraction", "[quant]") {
  CHECK(quant::round_half_even(0.5F) == 0.0F);
  CHECK(quant::round_half_even(1.5F) == 2.0F);
  CHECK(quant::round_half_even(2.5F) == 2.0F);
  CHECK(quant::round_half_even(-2.5) == -2.0);
  CHECK(quant::round_half_even(0.5000000000000001) == 1.0);
  CHECK(quant::round_half_even(4503599627370497.5) == 4503599627370498.0);
  CHECK(std::signbit(quant::round_half_even(-0.25F)));
  CHECK(quant::round_half_even(kTop) == kTop);
  CHECK(quant::round_half_even(-kInf) == -kInf);
  CHECK(std::isnan(quant::round_half_even(kNan)));
}

TEST_CASE("rounding equals nearbyint on random bit patterns", "[quant]") {
  std::mt19937_64 random(7);
  for (int i = 0; i < 200000; ++i) {
    const uint64_t pattern = random();
    float narrow = 0;
    double wide = 0;
    std::memcpy(&narrow, &pattern, sizeof narrow);
    std::memcpy(&wide, &pattern, sizeof wide);
    if (!std::isnan(narrow)) {
      REQUIRE(same_bits(quant::round_half_even(narrow), std::nearbyint(narrow)));
    }
    if (!std::isnan(wide)) REQUIRE(same_bits(quant::round_half_even(wide), std::nearbyint(wide)));
    const float near = static_cast<float>(static_cast<int64_t>(pattern % 4000001) - 2000000) / 4;
    REQUIRE(same_bits(quant::round_half_even(near), std::nearbyint(near)));
  }
}

TEST_CASE("codes saturate at both ends and for infinities", "[quant]") {
  const auto code = [](float x) {
    return quant::quantize_to_real(x, 2.0F, 3.0F, -8.0F, 7.0F);  // rint(2 x) + 3
  };
  CHECK(code(0.25F) == 3.0F);   // 0.5 -> 0
  CHECK(code(0.75F) == 5.0F);   // 1.5 -> 2
  CHECK(code(-0.75F) == 1.0F);  // -1.5 -> -2
  CHECK(code(2.0F) == 7.0F);
  CHECK(code(100.0F) == 7.0F);
  CHECK(code(kInf) == 7.0F);
  CHECK(code(-kInf) == -8.0F);
  CHECK(code(kTop) == 7.0F);  // 2 x overflows to infinity
  CHECK(std::isnan(code(kNan)));
}

TEST_CASE("the gradient passes at the ends of the range and not beyond", "[quant]") {
  const auto passes = [](float x) { return quant::passes_gradient(x, 1.0F, 0.0F, -2.0F, 1.0F); };
  CHECK(passes(1.5F) == false);  // 1.5 -> 2
  CHECK(passes(1.49F));          // 1
  CHECK(passes(-2.5F));          // -2
  CHECK_FALSE(passes(-2.51F));   // -3
  CHECK_FALSE(passes(kInf));
  CHECK_FALSE(passes(kNan));
}

TEST_CASE("fake quantization gives +0 and not -0", "[quant]") {
  CHECK(same_bits(quant::fake_quantize(-0.2F, 0.5F, 2.0F, 0.0F, -128.0F, 127.0F), 0.0F));
}

TEST_CASE("wide grids are saturated exactly", "[quant]") {
  // 2^31 - 1 is no fp32 number: the position 2^31 saturates to it, and its product with 0.5 in
  // double is 1073741823.5, in fp32 2^30 either way.
  const double hi = 2147483647.0;
  const float y = quant::fake_quantize_wide<double>(kTop, 0.5F, 2.0F, 0.0F, 0.0, -hi - 1, hi);
  CHECK(y == 1073741824.0F);
  // x / 3 = 16777217.3, in fp32 16777218; with z = -1 the code 16777217 is a tie and becomes 2^24.
  // (q - z) * 3 = 16777217 * 3 = 50331651, to fp32 50331652; with q - z in fp32 2^24 * 3.
  const float x = 50331652.0F;
  const float inverse = 1.0F / 3.0F;
  CHECK(quant::fake_quantize_wide<double>(x, 3.0F, inverse, -1.0F, -1.0, -hi, hi) == 50331652.0F);
  CHECK(quant::fake_quantize_wide<float>(x, 3.0F, inverse, -1.0F, -1.0, -hi, hi) == 50331648.0F);
}

TEST_CASE("ranges become grids by the preset's rule", "[quant]") {
  struct Row {
    Preset preset;
    float lo, hi, scale;
    int zero_point;
  };
  const Row rows[] = {
      {Preset::kHorizon, -255.0F, 10.0F, 2.0F, 0},          // 255 / 127.5
      {Preset::kTensorrt, -10.0F, 254.0F, 2.0F, 0},         // 254 / 127
      {Preset::kX86, -100.0F, 155.0F, 1.0F, 100},           // 255 / 255
      {Preset::kX86, 5.0F, 510.0F, 2.0F, 0},                // zero enters: [0, 510]
      {Preset::kX86, -510.0F, -5.0F, 2.0F, 255},            // [-510, 0]
      {Preset::kHorizon, 0.0F, 0.0F, quant::kMinScale, 0},  // 2^-23
      {Preset::kX86, 0.0F, 0.0F, quant::kMinScale, 0},
  };
  for (const Row& row : rows) {
    const quant::QParams found = quant::choose_qparams(row.lo, row.hi, row.preset);
    CHECK(found.scale == row.scale);
    CHECK(found.zero_point == row.zero_point);
  }
}

TEST_CASE("every range gives a finite positive scale and a zero point on the grid", "[quant]") {
  const float ends[] = {-kTop, -1.0F, -1e-38F, 0.0F, 1e-45F, 2.0F, kTop};
  for (const Preset preset : {Preset::kHorizon, Preset::kTensorrt, Preset::kX86}) {
    for (const float lo : ends) {
      for (const float hi : ends) {
        const quant::QParams found = quant::choose_qparams(lo, hi, preset);
        CHECK(std::isfinite(found.scale));
        CHECK(found.scale >= quant::kMinScale);
        CHECK(found.zero_point >= quant::quant_min(preset));
        CHECK(found.zero_point <= quant::quant_max(preset));
      }
    }
  }
}

TEST_CASE("a moving average is one fma, and finite across all of fp32", "[quant]") {
  CHECK(quant::moving_average(1.0F, 50.0F, 0.01F) == std::fma(0.01F, 49.0F, 1.0F));
  CHECK(quant::moving_average(-kTop, kTop, 0.5F) == 0.0F);
  CHECK(quant::moving_average(kTop, -kTop, 1.0F) == -kTop);
}

TEST_CASE("weight scales are at least 2^-23, and a diverged channel shows", "[quant]") {
  CHECK(quant::weight_scale(254.0F) == 2.0F);
  CHECK(quant::weight_scale(0.0F) == quant::kMinScale);
  CHECK(std::isnan(quant::weight_scale(kNan)));
  CHECK(std::isinf(quant::weight_scale(kInf)));
}
