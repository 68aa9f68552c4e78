// The VNNI kernel of depthwise layers, from codes to codes, against plain loops.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "catch.h"
#include "ops/cpu/kernels/depthwise.h"

namespace horizon::cpu {
namespace {

using quant::Activation;

constexpr uint8_t kUntouched = 77;

std::mt19937& generator() {
  static std::mt19937 engine(11);
  return engine;
}

template <typename T>
std::vector<T> random_bytes(int64_t count) {
  std::vector<T> out(count);
  for (auto& value : out) value = static_cast<T>(generator()());
  return out;
}

/// A layer on images of 5 x 7 pixels with "same" padding, and everything that it points to.
struct Case {
  static constexpr int64_t kBatch = 2, kHeight = 5, kWidth = 7;
  int64_t channels, rows, columns;
  std::vector<uint8_t> codes, padding;
  std::vector<int8_t> weight;  ///< [rows][columns][channels]
  std::vector<int64_t> tap_y, tap_x;
  std::vector<int32_t> correction;
  std::vector<float> multiplier, offset;
  DepthwiseLayer layer{};

  Case(int64_t channel_count, int64_t tap_rows, int64_t tap_columns, int64_t step, int32_t zero,
       Activation activation)
      : channels(channel_count),
        rows(tap_rows),
        columns(tap_columns),
        codes(random_bytes<uint8_t>(kBatch * kHeight * kWidth * channels)),
        padding(channels, static_cast<uint8_t>(zero)),
        weight(random_bytes<int8_t>(rows * columns * channels)) {
    for (int64_t y = 0; y < rows; ++y) {
      for (int64_t x = 0; x < columns; ++x) {
        tap_y.push_back(y - rows / 2);
        tap_x.push_back(x - columns / 2);
      }
    }
    for (int64_t c = 0; c < channels; ++c) {
      int32_t sum = 0;
      for (int64_t t = 0; t < rows * columns; ++t) sum += weight[t * channels + c];
      correction.push_back(-zero * sum);
      // Halves, quarters, ...: many of the values are ties.
      multiplier.push_back(std::ldexp(c % 2 == 0 ? 1.0F : -1.0F, -static_cast<int>(4 + c % 5)));
      offset.push_back(0.5F * static_cast<float>(c % 7));
    }
    GatherGeometry& g = layer.geometry;
    g.input = codes.data();
    g.input_end = codes.data() + codes.size();
    g.height = kHeight;
    g.width = kWidth;
    g.channels = g.group_channels = channels;
    g.grid_height = (kHeight - 1) / step + 1;
    g.grid_width = (kWidth - 1) / step + 1;
    g.step_y = g.step_x = step;
    g.taps = rows * columns;
    g.tap_y = tap_y.data();
    g.tap_x = tap_x.data();
    g.run = 1;
    g.zero_point = zero;
    layer.tap_rows = rows;
    layer.tap_columns = columns;
    layer.padding = padding.data();
    layer.epilogue.correction = correction.data();
    layer.epilogue.multiplier = multiplier.data();
    layer.epilogue.offset = offset.data();
    layer.epilogue.stage = {activation, 55.5F, 100.0F};
    layer.output_step = channels;
  }

  /// [rows][words of four columns][channels][4], as ops/conv_weights.h packs them.
  std::vector<int8_t> packed() const {
    const int64_t words = (columns + 3) / 4;
    std::vector<int8_t> out(rows * words * channels * 4);
    for (int64_t y = 0; y < rows; ++y) {
      for (int64_t x = 0; x < columns; ++x) {
        for (int64_t c = 0; c < channels; ++c) {
          out[((y * words + x / 4) * channels + c) * 4 + x % 4] =
              weight[(y * columns + x) * channels + c];
        }
      }
    }
    return out;
  }

  int64_t output_rows() const { return kBatch * layer.geometry.grid_height; }

  uint8_t expected(int64_t row, int64_t column, int64_t channel) const {
    const GatherGeometry& g = layer.geometry;
    const int64_t image = row / g.grid_height;
    int32_t sum = correction[channel];
    for (int64_t t = 0; t < g.taps; ++t) {
      const int64_t y = row % g.grid_height * g.step_y + tap_y[t];
      const int64_t x = column * g.step_x + tap_x[t];
      const bool inside = y >= 0 && y < kHeight && x >= 0 && x < kWidth;
      const int32_t code =
          inside ? codes[((image * kHeight + y) * kWidth + x) * channels + channel] : g.zero_point;
      sum += code * weight[t * channels + channel];
    }
    const OutputStage& stage = layer.epilogue.stage;
    // Powers of two: only the sum with the offset may round.
    float v = static_cast<float>(sum) * multiplier[channel] + offset[channel];
    if (stage.activation != Activation::kNone) v = std::max(v, 0.0F);
    if (stage.activation == Activation::kRelu6) v = std::min(v, stage.six);
    return static_cast<uint8_t>(std::clamp(std::nearbyint(v + stage.zero_point), 0.0F, 255.0F));
  }
};

void check(const Case& c) {
  const DepthwiseLayerKernels& kernels = *depthwise_layer_kernels();
  std::vector<uint8_t> prepared(kernels.prepared_bytes(c.rows, c.columns, c.channels));
  kernels.prepare(c.layer, c.packed().data(), prepared.data());
  std::vector<const uint8_t*> pixels(kernels.row_span(c.layer) * c.rows);
  const int64_t width = c.layer.geometry.grid_width * c.channels;
  std::vector<uint8_t> out(c.output_rows() * width + 1, kUntouched);
  const int64_t blocks = (c.channels + kernels.block - 1) / kernels.block;
  for (int64_t row = 0; row < c.output_rows(); ++row) {
    // Block by block from the last on, as threads that share a row may do.
    for (int64_t b = blocks; b-- > 0;) {
      kernels.run_row(c.layer, prepared.data(), row, b, b + 1, pixels.data(),
                      out.data() + row * width);
    }
  }
  int64_t wrong = 0;
  for (int64_t row = 0; row < c.output_rows(); ++row) {
    for (int64_t x = 0; x < c.layer.geometry.grid_width; ++x) {
      for (int64_t channel = 0; channel < c.channels; ++channel) {
        wrong += out[row * width + x * c.channels + channel] != c.expected(row, x, channel);
      }
    }
  }
  CHECK(wrong == 0);
  CHECK(out.back() == kUntouched);
}

TEST_CASE("a depthwise layer has the specified codes for every block of channels", "[integer]") {
  const int64_t channels = GENERATE(1, 3, 16, 31, 32, 33, 63, 64, 70, 96, 150);
  const int64_t step = GENERATE(1, 2, 3);
  const int32_t zero = GENERATE(0, 128, 255);
  if (depthwise_layer_kernels() == nullptr) return;
  check(Case(channels, 3, 3, step, zero, Activation::kRelu6));
}

TEST_CASE("a depthwise layer has the specified codes for every window", "[integer]") {
  const int64_t rows = GENERATE(1, 2, 5);
  const int64_t columns = GENERATE(1, 2, 3, 4, 5, 7);
  const int64_t channels = GENERATE(5, 40, 65);
  const auto activation = GENERATE(Activation::kNone, Activation::kRelu);
  if (depthwise_layer_kernels() == nullptr) return;
  check(Case(channels, rows, columns, 1, 131, activation));
  check(Case(channels, rows, columns, 2, 131, activation));
}

}  // namespace
}  // namespace horizon::cpu
