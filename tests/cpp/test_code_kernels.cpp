// The kernels of single integer ops, for every instruction set that this machine has, against
// plain loops.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "catch.h"
#include "kernel_tables.h"
#include "ops/cpu/kernels/average_pool.h"
#include "ops/cpu/kernels/elementwise.h"
#include "ops/cpu/kernels/lookup.h"
#include "ops/cpu/kernels/transpose.h"

namespace horizon::cpu {
namespace {

using quant::Activation;

std::vector<NamedTable<ElementwiseKernels>> elementwise_tables() {
  HORIZON_TEST_TABLES(ElementwiseKernels, elementwise_kernels);
  return tables;
}

std::vector<NamedTable<AveragePoolKernels>> average_tables() {
  HORIZON_TEST_TABLES(AveragePoolKernels, average_pool_kernels);
  return tables;
}

std::vector<NamedTable<LookupKernels>> lookup_tables() {
  HORIZON_TEST_TABLES(LookupKernels, lookup_kernels);
  return tables;
}

std::vector<NamedTable<TransposeKernels>> transpose_tables() {
  HORIZON_TEST_TABLES(TransposeKernels, transpose_kernels);
  return tables;
}

std::mt19937& generator() {
  static std::mt19937 engine(7);
  return engine;
}

std::vector<uint8_t> random_codes(int64_t count) {
  std::vector<uint8_t> codes(count);
  for (auto& code : codes) code = static_cast<uint8_t>(generator()());
  return codes;
}

/// Steps 4 and 5 in the words of the specification.
uint8_t expected_code(float v, const OutputStage& stage) {
  if (stage.activation != Activation::kNone) v = std::max(v, 0.0F);
  if (stage.activation == Activation::kRelu6) v = std::min(v, stage.six);
  const volatile float sum = v + stage.zero_point;
  return static_cast<uint8_t>(std::clamp(std::nearbyint(float{sum}), 0.0F, 255.0F));
}

/// x * m + b in two roundings.
float scaled(int32_t x, float m, float b) {
  const volatile float product = static_cast<float>(x) * m;
  return float{product} + b;
}

/// A map whose values are multiples of a half, so that many codes are ties, and others.
OutputStage stage_of(Activation activation) { return {activation, 55.5F, 100.0F}; }

TEST_CASE("sums and products of codes have the specified bits", "[integer]") {
  const int64_t count = GENERATE(0, 1, 15, 16, 31, 32, 33, 63, 64, 65, 1000);
  const auto activation = GENERATE(Activation::kNone, Activation::kRelu, Activation::kRelu6);
  const float ratio = GENERATE(0.5F, 0.73F, -0.41F);
  const auto a = random_codes(count);
  const auto b = random_codes(count);
  const BinaryCodes op{128, 3, ratio, -0.41F, stage_of(activation)};
  for (const auto& [name, kernels] : elementwise_tables()) {
    INFO(name);
    std::vector<uint8_t> sum(count + 1, 77);
    std::vector<uint8_t> product(count + 1, 77);
    kernels->add(op, a.data(), b.data(), count, sum.data());
    kernels->multiply(op, a.data(), b.data(), count, product.data());
    int64_t wrong = 0;
    for (int64_t i = 0; i < count; ++i) {
      const int32_t x = a[i] - 128;
      const int32_t y = b[i] - 3;
      // y * -0.41 is rounded, x enters with one more rounding.
      const volatile float second = static_cast<float>(y) * -0.41F;
      wrong +=
          sum[i] != expected_code(std::fma(static_cast<float>(x), ratio, float{second}), op.stage);
      wrong += product[i] != expected_code(scaled(x * y, ratio, 0.0F), op.stage);
    }
    CHECK(wrong == 0);
    CHECK((sum[count] == 77 && product[count] == 77));
  }
}

TEST_CASE("maps of codes have the specified bits, by table and by arithmetic", "[integer]") {
  const int64_t width = GENERATE(1, 3, 64, 100);
  const int64_t rows = GENERATE(0, 1, 40);  // 40 rows of 100 codes are looked up where that is fast
  const auto activation = GENERATE(Activation::kNone, Activation::kRelu, Activation::kRelu6);
  const float multiplier = GENERATE(0.5F, -0.37F, std::numeric_limits<float>::max());
  const int64_t stride = width + 3;
  const int64_t output_stride = width + 5;
  const auto q = random_codes(rows * stride);
  const AffineMap map{130, multiplier, 0.25F, stage_of(activation)};
  for (const auto& [name, kernels] : elementwise_tables()) {
    INFO(name);
    std::vector<uint8_t> out(rows * output_stride, 77);
    kernels->affine(map, q.data(), rows, width, stride, out.data(), output_stride);
    int64_t wrong = 0;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < output_stride; ++i) {
        const uint8_t expected =
            i < width ? expected_code(scaled(q[r * stride + i] - 130, multiplier, 0.25F), map.stage)
                      : 77;
        wrong += out[r * output_stride + i] != expected;
      }
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("rows of codes are looked up, and nothing beside them is written", "[integer]") {
  const int64_t width = GENERATE(0, 1, 63, 64, 65, 128, 200);
  const int64_t rows = GENERATE(0, 1, 7);
  const int64_t stride = width + 3;
  const int64_t output_stride = width + 70;
  // Every row reaches the end of memory that may be read: the last one has no stride behind it.
  const auto q = random_codes(rows == 0 ? 0 : (rows - 1) * stride + width);
  const auto table = random_codes(256);
  for (const auto& [name, kernels] : lookup_tables()) {
    INFO(name);
    std::vector<uint8_t> out(rows * output_stride, 77);
    kernels->lookup(q.data(), table.data(), rows, width, stride, out.data(), output_stride);
    int64_t wrong = 0;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < output_stride; ++i) {
        const uint8_t expected = i < width ? table[q[r * stride + i]] : 77;
        wrong += out[r * output_stride + i] != expected;
      }
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("matrices of codes of every size are transposed", "[integer]") {
  const int64_t rows = GENERATE(1, 2, 3, 5, 15, 16, 17, 48, 63);
  const int64_t columns = GENERATE(1, 2, 9, 15, 16, 17, 49, 65, 100);
  const int64_t slack = GENERATE(0, 3);
  const int64_t stride = columns + 2;
  const int64_t output_stride = rows + slack;
  const auto codes = random_codes((rows - 1) * stride + columns);
  for (const auto& [name, kernels] : transpose_tables()) {
    INFO(name);
    std::vector<uint8_t> out(columns * output_stride + 20, 77);
    kernels->transpose(codes.data(), stride, rows, columns, out.data(), output_stride);
    int64_t wrong = 0;
    for (int64_t i = 0; i < static_cast<int64_t>(out.size()); ++i) {
      const int64_t c = i / output_stride;
      const int64_t r = i % output_stride;
      wrong += out[i] != (c < columns && r < rows ? codes[r * stride + c] : 77);
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("maps per column have the specified bits", "[integer]") {
  const int64_t columns = GENERATE(1, 3, 17, 64, 96, 130);
  constexpr int64_t kRows = 5;
  const auto q = random_codes(kRows * columns);
  std::uniform_real_distribution<float> uniform(-1.0F, 1.0F);
  std::vector<float> m(columns);
  std::vector<float> b(columns);
  for (int64_t c = 0; c < columns; ++c) {
    m[c] = c % 3 == 0 ? 0.5F : uniform(generator());
    b[c] = 10 * uniform(generator());
  }
  const AffineMap map{7, 0.0F, 0.0F, stage_of(Activation::kRelu6)};
  for (const auto& [name, kernels] : elementwise_tables()) {
    INFO(name);
    std::vector<uint8_t> out(kRows * columns + 1, 77);
    kernels->affine_columns(map, m.data(), b.data(), q.data(), kRows, columns, out.data());
    int64_t wrong = 0;
    for (int64_t i = 0; i < kRows * columns; ++i) {
      wrong += out[i] != expected_code(scaled(q[i] - 7, m[i % columns], b[i % columns]), map.stage);
    }
    CHECK(wrong == 0);
    CHECK(out.back() == 77);
  }
}

TEST_CASE("windows of every size are averaged in integers", "[integer]") {
  const int64_t channels = GENERATE(1, 3, 17, 64, 130);
  // 600 rows need more than one uint16 sum for each column.
  const int64_t height = GENERATE(0, 1, 2, 3, 5, 600);
  constexpr int64_t kSize = 40;
  const auto runs = GENERATE(std::vector<WindowRun>{{1, 0, kSize, 1}},  // all
                             std::vector<WindowRun>{{20, 0, 2, 2}},     // stride 2
                             std::vector<WindowRun>{{19, 1, 3, 2}},     // to the end
                             std::vector<WindowRun>{{38, 0, 3, 1}},     // stride 1
                             std::vector<WindowRun>{{1, 0, 2, 1}, {12, 1, 3, 3}, {1, 40, 0, 1}},
                             std::vector<WindowRun>{{3, 0, 14, 13}});  // adaptive
  const auto image = random_codes(height * kSize * channels);
  int64_t count = 0;
  for (const WindowRun& run : runs) count += run.windows;
  std::vector<float> multiplier;
  for (int64_t x = 0; x < count; ++x) multiplier.push_back(0.5F / static_cast<float>(x + 2));
  const OutputStage stage{Activation::kNone, 0.0F, 90.0F};
  const AverageRow row{
      image.data(),      height, kSize, channels, runs.data(), static_cast<int64_t>(runs.size()),
      multiplier.data(), count,  130,   stage};
  for (const auto& [name, kernels] : average_tables()) {
    INFO(name);
    std::vector<uint16_t> columns(kSize * channels + 1);
    std::vector<int32_t> sums(count * channels);
    std::vector<float> multipliers(count * channels);
    std::vector<uint8_t> out(count * channels + 1, 77);
    kernels->row(row, {columns.data(), sums.data(), multipliers.data()}, out.data());
    int64_t wrong = 0;
    int64_t x = 0;
    for (const WindowRun& run : runs) {
      for (int64_t k = 0; k < run.windows; ++k, ++x) {
        const int64_t begin = run.begin + k * run.stride;
        for (int64_t c = 0; c < channels; ++c) {
          int32_t sum = 0;
          for (int64_t y = 0; y < height; ++y) {
            for (int64_t i = begin; i < begin + run.size; ++i) {
              sum += image[(y * kSize + i) * channels + c] - 130;
            }
          }
          wrong += out[x * channels + c] != expected_code(scaled(sum, multiplier[x], 0.0F), stage);
        }
      }
    }
    CHECK(wrong == 0);
    CHECK(out.back() == 77);
  }
}

TEST_CASE("maps per plane have the specified bits", "[integer]") {
  const int64_t size = GENERATE(1, 3, 49, 64, 100, 1100);
  constexpr int64_t kChannels = 3;
  constexpr int64_t kPlanes = 7;
  const auto q = random_codes(kPlanes * size);
  const std::vector<float> m{0.5F, -0.37F, 1.9F};
  const std::vector<float> b{0.5F, 20.0F, -3.3F};
  const AffineMap map{7, 0.0F, 0.0F, stage_of(Activation::kRelu6)};
  for (const auto& [name, kernels] : elementwise_tables()) {
    INFO(name);
    std::vector<uint8_t> out(kPlanes * size + 1, 77);
    kernels->affine_planes(map, m.data(), b.data(), kChannels, q.data(), kPlanes, size, 2,
                           out.data());
    int64_t wrong = 0;
    for (int64_t i = 0; i < kPlanes * size; ++i) {
      const int64_t c = (2 + i / size) % kChannels;
      wrong += out[i] != expected_code(scaled(q[i] - 7, m[c], b[c]), map.stage);
    }
    CHECK(wrong == 0);
    CHECK(out.back() == 77);
  }
}

TEST_CASE("codes are summed exactly", "[integer]") {
  const int64_t count = GENERATE(0, 1, 49, 64, 1000, 100003);
  const auto q = random_codes(count);
  int32_t total = 0;
  for (const uint8_t code : q) total += code;
  for (const auto& [name, kernels] : average_tables()) {
    INFO(name);
    CHECK(kernels->sum(q.data(), count) == total);
  }
}

}  // namespace
}  // namespace horizon::cpu
