#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "catch.h"
#include "ops/cpu/kernels/fake_quantize.h"
#include "ops/cpu/kernels/observe.h"
#include "quant/fake_quantize.h"

namespace cpu = horizon::cpu;
namespace quant = horizon::quant;
using cpu::FloatType;

namespace {

struct Tables {
  std::string name;
  const cpu::FakeQuantizeKernels* fake;
  const cpu::ObserveKernels* observe;
};

// Every instruction set that this machine has, the generic one first.
std::vector<Tables> tables() {
  std::vector<Tables> all{
      {"generic", &cpu::generic::fake_quantize_kernels(), &cpu::generic::observe_kernels()}};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0) {
    all.push_back({"avx2", &cpu::avx2::fake_quantize_kernels(), &cpu::avx2::observe_kernels()});
  }
  if (__builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
      __builtin_cpu_supports("avx512vl") != 0) {
    all.push_back(
        {"avx512", &cpu::avx512::fake_quantize_kernels(), &cpu::avx512::observe_kernels()});
  }
#endif
  return all;
}

size_t width(FloatType type) {
  return type == FloatType::kDouble ? 8 : type == FloatType::kFloat ? 4 : 2;
}

const FloatType kTypes[] = {FloatType::kFloat, FloatType::kDouble, FloatType::kHalf,
                            FloatType::kBFloat16};

// Random bit patterns: every exponent, infinities, NaN and subnormals among them.
std::vector<uint8_t> random_bytes(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<uint8_t> bytes(count);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  return bytes;
}

// 16-bit results of NaN are compared as they are: payloads are part of "the same bits".
struct Outputs {
  std::vector<uint8_t> y, mask, channel_y, channel_mask, gradient;
  bool operator==(const Outputs&) const = default;
};

Outputs run(const cpu::FakeQuantizeKernels& kernels, FloatType type, int64_t count,
            const std::vector<uint8_t>& x, const cpu::Grid& grid, const cpu::ChannelGrids& grids) {
  const auto bytes = static_cast<size_t>(count) * width(type);
  const auto mask_bytes = static_cast<size_t>((count + 7) / 8);
  Outputs out{std::vector<uint8_t>(bytes), std::vector<uint8_t>(mask_bytes),
              std::vector<uint8_t>(bytes), std::vector<uint8_t>(mask_bytes),
              std::vector<uint8_t>(bytes)};
  kernels.per_tensor(type, x.data(), out.y.data(), out.mask.data(), 0, count, grid);
  kernels.per_channel(type, x.data(), out.channel_y.data(), out.channel_mask.data(), 0, count,
                      grids);
  kernels.mask_gradient(type, x.data(), out.mask.data(), out.gradient.data(), 0, count);
  return out;
}

}  // namespace

TEST_CASE("fake quantization kernels give the same bits on every instruction set", "[quant]") {
  const std::vector<float> scale(70 + cpu::kBlock, 0.5F);
  const std::vector<float> inverse(70 + cpu::kBlock, 2.0F);
  std::vector<int32_t> zero_point;
  for (int i = 0; i < 70 + cpu::kBlock; ++i) zero_point.push_back(i % 70 - 30);
  const cpu::Grid grids_of_tensor[] = {{0.1F, 1.0F / 0.1F, 3, -128, 127},
                                       {3e-5F, 1.0F / 3e-5F, -7, -2147483647, 2147483647}};
  const auto all = tables();
  for (const FloatType type : kTypes) {
    for (const int64_t count : {1, 7, 63, 64, 65, 130, 1000}) {
      const auto x = random_bytes(static_cast<size_t>(count) * width(type), 11);
      for (const cpu::Grid& grid : grids_of_tensor) {
        for (const int64_t inner : {1, 3, 100}) {
          const cpu::ChannelGrids grids{
              scale.data(), inverse.data(), zero_point.data(), grid.lo, grid.hi, 70, inner};
          const Outputs expected = run(*all[0].fake, type, count, x, grid, grids);
          for (const Tables& table : all) {
            CAPTURE(table.name, static_cast<int>(type), count, inner);
            CHECK(run(*table.fake, type, count, x, grid, grids) == expected);
          }
        }
      }
    }
  }
}

TEST_CASE("the kernel of fp32 is the formula, element by element", "[quant]") {
  constexpr int64_t kCount = 1003;
  const auto bytes = random_bytes(kCount * 4, 5);
  std::vector<float> x(kCount);
  std::memcpy(x.data(), bytes.data(), bytes.size());
  for (int64_t i = 0; i < kCount; i += 2) x[static_cast<size_t>(i)] = static_cast<float>(i - 500);
  const cpu::Grid grid{3.0F, 1.0F / 3.0F, 5, -100, 90};
  for (const Tables& table : tables()) {
    std::vector<float> y(kCount);
    std::vector<uint8_t> mask((kCount + 7) / 8);
    table.fake->per_tensor(FloatType::kFloat, x.data(), y.data(), mask.data(), 0, kCount, grid);
    int passed = 0;
    for (int64_t i = 0; i < kCount; ++i) {
      const float v = x[static_cast<size_t>(i)];
      CAPTURE(table.name, i, v);
      const float expected =
          quant::fake_quantize(v, grid.scale, grid.inv_scale, 5.0F, -100.0F, 90.0F);
      const float found = y[static_cast<size_t>(i)];
      REQUIRE((found == expected || (std::isnan(v) && std::isnan(found))));
      const bool bit = ((mask[static_cast<size_t>(i / 8)] >> (i % 8)) & 1) != 0;
      REQUIRE(bit == quant::passes_gradient(v, grid.inv_scale, 5.0F, -100.0F, 90.0F));
      passed += bit ? 1 : 0;
    }
    CHECK(passed > 100);
    CHECK(passed < 900);
    CHECK((mask.back() >> (kCount % 8)) == 0);
  }
}

TEST_CASE("code kernels give the same codes on every instruction set", "[quant]") {
  const auto all = tables();
  const cpu::Grid grid{0.5F, 2.0F, 9, 0, 255};
  for (const FloatType type : kTypes) {
    for (const int64_t count : {1, 63, 64, 129, 777}) {
      const auto n = static_cast<size_t>(count);
      const auto x = random_bytes(n * width(type), 3);
      std::vector<uint8_t> expected(n), found(n), back(n * width(type)), again(n * width(type));
      const bool valid = all[0].fake->quantize(type, x.data(), expected.data(), 0, count, grid);
      all[0].fake->dequantize(type, expected.data(), back.data(), 0, count, 0.3F, 9);
      for (const Tables& table : all) {
        CAPTURE(table.name, static_cast<int>(type), count);
        CHECK(table.fake->quantize(type, x.data(), found.data(), 0, count, grid) == valid);
        CHECK(found == expected);
        table.fake->dequantize(type, expected.data(), again.data(), 0, count, 0.3F, 9);
        CHECK(again == back);
      }
    }
  }
}

TEST_CASE("extremes are the same on every instruction set and never lose NaN", "[quant]") {
  const auto all = tables();
  std::mt19937 random(17);
  std::normal_distribution<float> normal;
  for (const int count : {1, 2, 15, 33, 100, 1025}) {
    std::vector<float> x(static_cast<size_t>(count));
    for (float& v : x) v = normal(random);
    float lo = x[0];
    float hi = x[0];
    for (const float v : x) {
      lo = std::min(lo, v);
      hi = std::max(hi, v);
    }
    for (const Tables& table : all) {
      CAPTURE(table.name, count);
      double found_lo = 0;
      double found_hi = 0;
      table.observe->min_max(FloatType::kFloat, x.data(), count, &found_lo, &found_hi);
      CHECK(found_lo == static_cast<double>(lo));
      CHECK(found_hi == static_cast<double>(hi));
      for (int where = 0; where < count; where += 1 + count / 37) {
        for (const float sign : {1.0F, -1.0F}) {
          std::vector<float> bad = x;
          bad[static_cast<size_t>(where)] =
              std::copysign(std::numeric_limits<float>::quiet_NaN(), sign);
          table.observe->min_max(FloatType::kFloat, bad.data(), count, &found_lo, &found_hi);
          REQUIRE(std::isnan(found_lo));
          REQUIRE(std::isnan(found_hi));
        }
      }
    }
  }
}

TEST_CASE("channels keep their own magnitude, however they lie in memory", "[quant]") {
  struct Shape {
    int64_t outer, channels, inner;
  };
  for (const Shape s : {Shape{1, 5, 27},
                        {1, 3, 700},
                        {4, 70, 1},
                        {3, 6, 9},
                        {2, 600, 2},
                        {3, 4, 64},
                        {5, 2, 100}}) {
    std::vector<float> x(static_cast<size_t>(s.outer * s.channels * s.inner));
    std::vector<double> expected(static_cast<size_t>(s.channels), 0.0);
    std::mt19937 random(23);
    std::normal_distribution<float> normal;
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] = normal(random);
      const size_t c = i / static_cast<size_t>(s.inner) % static_cast<size_t>(s.channels);
      expected[c] = std::max(expected[c], std::fabs(static_cast<double>(x[i])));
    }
    for (const Tables& table : tables()) {
      CAPTURE(table.name, s.outer, s.channels, s.inner);
      std::vector<double> found(expected.size(), -1.0);
      const int64_t half = s.channels / 2;
      for (const auto& [begin, end] : {std::pair{int64_t{0}, half}, {half, s.channels}}) {
        table.observe->channel_abs_max(FloatType::kFloat, x.data(), s.outer, s.channels, s.inner,
                                       begin, end, found.data());
      }
      CHECK(found == expected);
    }
  }
}
