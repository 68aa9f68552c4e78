// The integer kernels of every instruction set that this machine has, against plain loops.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "catch.h"
#include "ops/cpu/kernels/codes.h"
#include "ops/cpu/kernels/depthwise.h"
#include "ops/cpu/kernels/gemm.h"

namespace horizon::cpu {
namespace {

template <typename Table>
struct Named {
  std::string name;
  const Table* table;
};

#if defined(__x86_64__)
bool has_avx2() {
  return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 &&
         __builtin_cpu_supports("f16c") != 0;
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") != 0 &&
         __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
         __builtin_cpu_supports("avx512dq") != 0;
}
#define HORIZON_TEST_TABLES(Table, name)                           \
  std::vector<Named<Table>> tables{{"generic", &generic::name()}}; \
  if (has_avx2()) tables.push_back({"avx2", &avx2::name()});       \
  if (has_avx512()) tables.push_back({"avx512", &avx512::name()}); \
  static_assert(true)
#else
#define HORIZON_TEST_TABLES(Table, name) \
  std::vector<Named<Table>> tables {     \
    {                                    \
      "generic", &generic::name()        \
    }                                    \
  }
#endif

std::vector<Named<GemmKernels>> gemm_tables() {
  HORIZON_TEST_TABLES(GemmKernels, gemm_kernels);
#if defined(__x86_64__)
  if (has_avx512() && __builtin_cpu_supports("avx512vnni") != 0) {
    tables.push_back({"vnni", &avx512::gemm_vnni_kernels()});
  }
#endif
  return tables;
}

std::vector<Named<DepthwiseKernels>> depthwise_tables() {
  HORIZON_TEST_TABLES(DepthwiseKernels, depthwise_kernels);
  return tables;
}

std::vector<Named<CodesKernels>> codes_tables() {
  HORIZON_TEST_TABLES(CodesKernels, codes_kernels);
  return tables;
}

std::mt19937& generator() {
  static std::mt19937 engine(1);
  return engine;
}

std::vector<uint8_t> random_codes(int64_t count) {
  std::vector<uint8_t> out(count);
  for (auto& q : out) q = static_cast<uint8_t>(generator()() % 256);
  return out;
}

std::vector<int8_t> random_weights(int64_t count) {
  std::vector<int8_t> out(count);
  for (auto& w : out) w = static_cast<int8_t>(static_cast<int>(generator()() % 256) - 128);
  return out;
}

/// An image and the taps of a 3x3 kernel with padding 1.
struct Image {
  int64_t batch = 2, height = 5, width = 6, channels;
  std::vector<uint8_t> codes;
  std::vector<int64_t> tap_y, tap_x;

  explicit Image(int64_t channel_count)
      : channels(channel_count), codes(random_codes(batch * height * width * channels)) {
    for (int64_t y = -1; y <= 1; ++y) {
      for (int64_t x = -1; x <= 1; ++x) {
        tap_y.push_back(y);
        tap_x.push_back(x);
      }
    }
  }

  GatherGeometry geometry(int64_t step, int32_t zero_point) const {
    GatherGeometry g{};
    g.input = codes.data();
    g.height = height;
    g.width = width;
    g.channels = g.group_channels = channels;
    g.grid_height = (height - 1) / step + 1;
    g.grid_width = (width - 1) / step + 1;
    g.step_y = g.step_x = step;
    g.taps = 9;
    g.tap_y = tap_y.data();
    g.tap_x = tap_x.data();
    g.run = 1;
    g.zero_point = zero_point;
    g.input_end = codes.data() + codes.size();
    g.last_pixel = g.input_end - channels;
    return g;
  }

  int64_t rows(const GatherGeometry& g) const { return batch * g.grid_height * g.grid_width; }

  int32_t code(const GatherGeometry& g, int64_t row, int64_t tap, int64_t channel) const {
    const int64_t n = row / (g.grid_height * g.grid_width);
    const int64_t y = row / g.grid_width % g.grid_height * g.step_y + tap_y[tap];
    const int64_t x = row % g.grid_width * g.step_x + tap_x[tap];
    if (y < 0 || y >= height || x < 0 || x >= width) return g.zero_point;
    return codes[((n * height + y) * width + x) * channels + channel];
  }
};

int64_t rounded_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

/// Weights [n][k] as ops/conv_weights.h packs them, with garbage in the slack.
std::vector<int8_t> packed(const std::vector<int8_t>& weight, int64_t n, int64_t k) {
  const int64_t depth = rounded_up(k, 4);
  std::vector<int8_t> out(rounded_up(n, 16) * depth + 1024);
  std::fill(out.end() - 1024, out.end(), int8_t{99});
  for (int64_t o = 0; o < n; ++o) {
    for (int64_t i = 0; i < k; ++i) {
      out[o / 16 * 16 * depth + i / 4 * 64 + o % 16 * 4 + i % 4] = weight[o * k + i];
    }
  }
  return out;
}

/// A times W panel by panel, in chunks of rows: [rows][n rounded up to 16].
std::vector<int32_t> product(const GemmKernels& kernels, const std::vector<uint8_t>& a,
                             int64_t a_stride, int64_t rows, const std::vector<int8_t>& w,
                             int64_t n, int64_t depth) {
  const int64_t blocks = rounded_up(n, 16) / 16;
  const int64_t stride = blocks * 16;
  std::vector<int32_t> c((rows + kernels.row_chunk) * stride);
  std::vector<uint8_t> expanded(kernels.expanded_bytes(depth));
  kernels.begin(depth);
  for (int64_t b = 0; b < blocks; b += kernels.panel) {
    const int64_t count = std::min(kernels.panel, blocks - b);
    const void* panel = w.data() + b * 16 * depth;
    if (kernels.expand != nullptr) {
      kernels.expand(w.data() + b * 16 * depth, count, depth, expanded.data());
      panel = expanded.data();
    }
    for (int64_t r = 0; r < rows; r += kernels.row_chunk) {
      kernels.multiply(a.data() + r * a_stride, a_stride, std::min(kernels.row_chunk, rows - r),
                       panel, count, depth, c.data() + r * stride + b * 16, stride);
    }
  }
  kernels.end();
  return c;
}

TEST_CASE("a matrix product of codes is exact on every instruction set", "[integer]") {
  const int64_t channels = GENERATE(1, 3, 4, 7, 16, 33);
  const int64_t outputs = GENERATE(1, 5, 16, 17, 48, 70, 130);
  const int64_t step = GENERATE(1, 2);
  const int32_t zero_point = GENERATE(0, 128, 255);
  const Image image(channels);
  const std::vector<int8_t> weight = random_weights(outputs * 9 * channels);
  const int64_t k = 9 * channels;
  const std::vector<int8_t> w = packed(weight, outputs, k);
  for (const auto& [name, kernels] : gemm_tables()) {
    INFO(name);
    GatherGeometry g = image.geometry(step, zero_point);
    g.run = step == 1 ? 3 : 1;
    const int64_t depth = rounded_up(k, 4);
    g.depth = kernels->padded_depth(depth);
    const int64_t a_stride = g.depth * kernels->element_size;
    const int64_t rows = image.rows(g);
    std::vector<uint8_t> a(rounded_up(rows, kernels->row_tile) * a_stride + kGatherSlack);
    // In two parts, as two threads would.
    const int64_t half = rows / 2;
    kernels->gather(g, 0, half, a.data());
    kernels->gather(g, half, rows - half, a.data() + half * a_stride);
    const auto c = product(*kernels, a, a_stride, rows, w, outputs, depth);
    int64_t wrong = 0;
    for (int64_t n = 0; n < outputs; ++n) {
      int64_t sum = 0;
      for (int64_t i = 0; i < k; ++i) sum += weight[n * k + i];
      const int64_t correction = kernels->element_size == 1 ? sum * zero_point : 0;
      for (int64_t r = 0; r < rows; ++r) {
        int64_t expected = 0;
        for (int64_t i = 0; i < k; ++i) {
          expected += (image.code(g, r, i / channels, i % channels) - zero_point) *
                      int64_t{weight[n * k + i]};
        }
        wrong += c[r * rounded_up(outputs, 16) + n] - correction != expected;
      }
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("the sums of the largest codes and weights do not saturate", "[integer]") {
  // 65792 * 255 * 128 = 2147450880 < 2^31.
  const int64_t depth = 65792;
  const int32_t sign = GENERATE(1, -1);
  const int8_t extreme = static_cast<int8_t>(sign > 0 ? 127 : -128);
  const std::vector<int8_t> w = packed(std::vector<int8_t>(depth, extreme), 1, depth);
  const std::vector<uint8_t> codes(depth, 255);
  for (const auto& [name, kernels] : gemm_tables()) {
    INFO(name);
    GatherGeometry g{};
    g.input = codes.data();
    g.input_end = g.input + depth;
    g.height = g.width = g.grid_height = g.grid_width = g.step_y = g.step_x = g.taps = g.run = 1;
    g.channels = g.group_channels = depth;
    g.depth = kernels->padded_depth(depth);
    const int64_t zero = 0;
    g.tap_y = g.tap_x = &zero;
    const int64_t a_stride = g.depth * kernels->element_size;
    std::vector<uint8_t> a(kernels->row_tile * a_stride + kGatherSlack);
    kernels->gather(g, 0, 1, a.data());
    const auto c = product(*kernels, a, a_stride, 1, w, 1, depth);
    CHECK(c[0] == depth * 255 * extreme);
    for (int64_t lane = 1; lane < 16; ++lane) CHECK(c[lane] == 0);
  }
}

TEST_CASE("a depthwise convolution is exact on every instruction set", "[integer]") {
  const int64_t channels = GENERATE(1, 3, 8, 16, 17, 64, 70, 150);
  const int64_t step = GENERATE(1, 2);
  const int32_t zero_point = GENERATE(0, 128, 255);
  const Image image(channels);
  const GatherGeometry g = image.geometry(step, zero_point);
  const std::vector<int8_t> weight = random_weights(9 * channels);
  const std::vector<int32_t> wide(weight.begin(), weight.end());
  const std::vector<uint8_t> padding(channels, static_cast<uint8_t>(zero_point));
  for (const auto& [name, kernels] : depthwise_tables()) {
    INFO(name);
    const int64_t rows = image.rows(g);
    std::vector<int32_t> acc(rows * channels);
    const int64_t half = rows / 3;
    kernels->depthwise(g, wide.data(), padding.data(), 0, half, acc.data());
    kernels->depthwise(g, wide.data(), padding.data(), half, rows - half,
                       acc.data() + half * channels);
    int64_t wrong = 0;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < channels; ++c) {
        int32_t expected = 0;
        for (int64_t t = 0; t < 9; ++t) {
          expected += image.code(g, r, t, c) * wide[t * channels + c];
        }
        wrong += acc[r * channels + c] != expected;
      }
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("small groups are exact on every instruction set", "[integer]") {
  const int64_t group = GENERATE(1, 2, 3, 4, 5, 8);
  const int64_t group_out = GENERATE(1, 2, 3, 5);
  const int64_t groups = GENERATE(3, 4, 7);
  const int32_t zero_point = GENERATE(0, 128);
  const Image image(group * groups);
  GatherGeometry g = image.geometry(1, zero_point);
  g.group_channels = group;
  const int64_t outputs = group_out * groups;
  const int64_t steps = (group + 3) / 4;
  const std::vector<int8_t> weight = random_weights(outputs * 9 * group);
  std::vector<uint8_t> padding(image.channels + 4, static_cast<uint8_t>(zero_point));
  std::vector<uint8_t> last(g.last_pixel, g.last_pixel + image.channels);
  last.resize(image.channels + 4);
  for (const auto& [name, kernels] : depthwise_tables()) {
    INFO(name);
    const int64_t lanes = kernels->lanes;
    const int64_t padded = rounded_up(outputs, lanes);
    std::vector<int32_t> channel(padded, 0);
    std::vector<int32_t> pairs(9 * steps * padded * 2, 0);
    auto* halves = reinterpret_cast<int16_t*>(pairs.data());
    for (int64_t o = 0; o < outputs; ++o) {
      channel[o] = static_cast<int32_t>(o / group_out * group);
      for (int64_t i = 0; i < 9 * group; ++i) {
        const int64_t c = i % group;
        const int64_t block = (i / group * steps + c / 4) * (padded / lanes) + o / lanes;
        halves[((block * 2 + c % 2) * lanes + o % lanes) * 2 + c % 4 / 2] =
            weight[o * 9 * group + i];
      }
    }
    const int64_t rows = image.rows(g);
    std::vector<int32_t> acc(rows * padded);
    kernels->grouped(g, channel.data(), outputs, pairs.data(), padding.data(), last.data(), 0, 9,
                     acc.data());
    kernels->grouped(g, channel.data(), outputs, pairs.data(), padding.data(), last.data(), 9,
                     rows - 9, acc.data() + 9 * padded);
    int64_t wrong = 0;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t o = 0; o < outputs; ++o) {
        int32_t expected = 0;
        for (int64_t i = 0; i < 9 * group; ++i) {
          expected +=
              image.code(g, r, i / group, channel[o] + i % group) * weight[o * 9 * group + i];
        }
        wrong += acc[r * padded + o] != expected;
      }
    }
    CHECK(wrong == 0);
  }
}

/// What ends a group, in the words of the specification: each line is one rounding.
uint8_t expected_code(int32_t sum, float m, float b, const uint8_t* skip, int32_t z_r, float ratio,
                      const OutputStage& stage) {
  volatile float v = static_cast<float>(sum);
  v = v * m;
  v = v + b;
  if (skip != nullptr) v = std::fma(static_cast<float>(*skip - z_r), ratio, v);
  if (stage.activation != quant::Activation::kNone) v = std::max(float{v}, 0.0F);
  if (stage.activation == quant::Activation::kRelu6) v = std::min(float{v}, stage.six);
  v = v + stage.zero_point;
  return static_cast<uint8_t>(std::clamp(std::nearbyint(float{v}), 0.0F, 255.0F));
}

TEST_CASE("the epilogue rounds as specified for every width", "[integer]") {
  const int64_t columns = GENERATE(1, 3, 15, 16, 17, 31, 64, 65, 100);
  const bool with_skip = GENERATE(false, true);
  const auto activation =
      GENERATE(quant::Activation::kNone, quant::Activation::kRelu, quant::Activation::kRelu6);
  constexpr int64_t kRows = 7;
  const int64_t stride = columns + 5;
  std::uniform_real_distribution<float> uniform(-1.0F, 1.0F);
  std::vector<int32_t> acc(kRows * stride + 16);
  std::vector<int32_t> correction(columns + 16);
  std::vector<float> m(columns + 16);
  std::vector<float> b(columns + 16);
  std::vector<int64_t> position;
  for (auto& value : acc) value = static_cast<int32_t>(generator()() % 200001) - 100000;
  for (int64_t c = 0; c < columns; ++c) {
    correction[c] = static_cast<int32_t>(generator()() % 1000);
    // Every third channel meets ties: its products are multiples of a half.
    m[c] = c % 3 == 0 ? 0.5F : uniform(generator()) * 2e-3F;
    b[c] = c % 3 == 0 ? 0.5F * static_cast<float>(c % 7) : uniform(generator()) * 50;
  }
  for (int64_t r = 0; r < kRows; ++r) position.push_back((kRows - 1 - r) * stride + 2);
  const auto skip = random_codes(kRows * stride + 2);
  const OutputStage stage{activation, 97.25F, 33.0F};
  ConvEpilogue epilogue{
      correction.data(), m.data(), b.data(), with_skip ? skip.data() : nullptr, 5, 0.37F, stage};
  for (const auto& [name, kernels] : codes_tables()) {
    INFO(name);
    std::vector<uint8_t> out(kRows * stride + 2, 77);
    std::vector<float> values(kRows * stride + 2);
    kernels->conv_codes(epilogue, acc.data(), stride, kRows, columns, position.data(), out.data());
    kernels->conv_values(epilogue, acc.data(), stride, kRows, columns, position.data(),
                         values.data());
    int64_t wrong = 0;
    int64_t touched = 0;
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t c = 0; c < columns; ++c) {
        const int64_t at = position[r] + c;
        const uint8_t expected = expected_code(acc[r * stride + c] + correction[c], m[c], b[c],
                                               with_skip ? &skip[at] : nullptr, 5, 0.37F, stage);
        wrong += out[at] != expected;
        wrong += quant::to_code(values[at], stage.zero_point) != expected;
      }
      for (int64_t c = columns; c < stride; ++c) touched += out[position[r] + c] != 77;
    }
    CHECK(wrong == 0);
    CHECK(touched == 0);
  }
}

TEST_CASE("a code is the value rounded half to even and saturated", "[integer]") {
  using quant::to_code;
  CHECK(to_code(0.5F, 0.0F) == 0);
  CHECK(to_code(1.5F, 0.0F) == 2);
  CHECK(to_code(2.5F, 0.0F) == 2);
  CHECK(to_code(254.5F, 0.0F) == 254);
  CHECK(to_code(255.5F, 0.0F) == 255);
  CHECK(to_code(-0.5F, 0.0F) == 0);
  CHECK(to_code(-0.5F, 1.0F) == 0);  // 0.5, a tie
  CHECK(to_code(0.5F, 1.0F) == 2);   // 1.5, a tie
  CHECK(to_code(-0.0F, 0.0F) == 0);
  CHECK(to_code(1e-30F, 128.0F) == 128);
  // The sum is rounded first: 0.49999997 + 128 is 128.5 in fp32, and then a tie.
  CHECK(0.49999997F + 128.0F == 128.5F);
  CHECK(to_code(0.49999997F, 128.0F) == 128);
  CHECK(to_code(1.4999999F, 128.0F) == 130);
  for (const float huge : {4294967296.0F, 3e38F, std::numeric_limits<float>::infinity()}) {
    CHECK(to_code(huge, 128.0F) == 255);
    CHECK(to_code(-huge, 128.0F) == 0);
  }
  for (int i = -600; i < 1200; ++i) {
    const float v = static_cast<float>(i) * 0.25F;
    REQUIRE(to_code(v, 0.0F) == std::clamp(std::nearbyint(v), 0.0F, 255.0F));
  }
}

}  // namespace
}  // namespace horizon::cpu
