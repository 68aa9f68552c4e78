#include <algorithm>
#include <random>
#include <vector>

#include "catch.h"
#include "ops/cpu/kernels/conv_amx.h"

#if defined(__x86_64__)

// Tiles of 16 rows against plain loops: what they read, which rows and columns they write.
namespace horizon::cpu {
namespace {

using avx512::conv_tiles;
using avx512::kPanel;
using avx512::tile_depth;
using avx512::TileConv;
using avx512::TilePair;

constexpr uint8_t kUntouched = 213;

struct Layer {
  int64_t channels, words, steps, rows;
  int64_t depth() const { return words * steps * 4; }
  int64_t padded() const { return (channels + 31) / 32 * 32; }
};

/// Constants, codes and weights of one layer whose rows overlap: row r starts at byte 8 r, and its
/// steps lie `gap` bytes apart.
struct Case {
  static constexpr int64_t kRowBytes = 8;
  static constexpr int64_t kGap = 100;
  Layer l;
  std::vector<uint8_t> codes, skip;
  std::vector<int8_t> weights;
  std::vector<int64_t> offsets;
  std::vector<int32_t> correction;
  std::vector<float> multiplier, offset;

  explicit Case(const Layer& layer) : l(layer) {
    std::mt19937 random(7);
    const auto bytes = [&](auto& to, int64_t count) {
      to.resize(count);
      for (auto& x : to) x = static_cast<std::decay_t<decltype(x)>>(random());
    };
    bytes(codes, (l.rows + 16) * kRowBytes + l.steps * kGap + 64);
    bytes(skip, l.rows * l.channels + 64);
    bytes(weights, l.padded() * l.depth() + 1024);
    for (int64_t s = 0; s < l.steps; ++s) offsets.push_back(s * kGap);
    for (int64_t c = 0; c < l.padded() + 32; ++c) {
      correction.push_back(static_cast<int32_t>(random() % 2001) - 1000);
      multiplier.push_back(static_cast<float>(random() % 1000) * 1e-6F);
      offset.push_back(static_cast<float>(random() % 100) - 50.0F);
    }
  }

  int64_t sum(int64_t row, int64_t channel) const {
    int64_t sum = correction[channel];
    for (int64_t k = 0; k < l.depth(); ++k) {
      const int64_t step = k / (l.words * 4);
      const uint8_t code = codes[row * kRowBytes + offsets[step] + k % (l.words * 4)];
      const int8_t w =
          weights[channel / 16 * 16 * l.depth() + k / 4 * 64 + channel % 16 * 4 + k % 4];
      sum += int64_t{code} * w;
    }
    return sum;
  }

  float value(int64_t row, int64_t channel, bool skipped) const {
    const auto acc = static_cast<int32_t>(sum(row, channel));
    float v = quant::scale_accumulator(acc, multiplier[channel], offset[channel]);
    if (skipped) v = quant::add_skip(v, skip[row * l.channels + channel] - 7, 0.25F);
    return v;
  }

  /// Every row but each fifth; pairs of tiles, and one tile at the end of an odd number.
  std::vector<TilePair> pairs() const {
    std::vector<TilePair> out;
    for (int64_t first = 0; first < l.rows; first += TilePair::kRows) {
      TilePair pair{};
      for (int64_t half = 0; half < 2 && first + half * 16 < l.rows; ++half) {
        pair.tile[half] = codes.data() + (first + half * 16) * kRowBytes;
      }
      for (int64_t k = 0; k < TilePair::kRows && first + k < l.rows; ++k) {
        if ((first + k) % 5 == 0) continue;
        pair.row[pair.count] = static_cast<uint8_t>(k);
        pair.position[pair.count++] = (first + k) * l.channels;
      }
      out.push_back(pair);
    }
    return out;
  }
};

TEST_CASE("tiles of a convolution have the sums and codes of plain loops", "[integer]") {
  if (!has_amx()) {
    WARN("left out: this machine has no AMX, or HORIZON_CPU_CAPABILITY forbids it");
    return;
  }
  const int64_t channels = GENERATE(1, 15, 16, 17, 31, 32, 33, 48, 70, 128);
  const int64_t rows = GENERATE(1, 16, 17, 31, 32, 33, 48, 100);
  const int64_t words = GENERATE(1, 6, 16);
  const int64_t steps = GENERATE(1, 2, 9, 20);
  const bool skipped = GENERATE(false, true);
  const Case c({channels, words, steps, rows});
  const auto pairs = c.pairs();
  TileConv conv{};
  conv.depth = {steps, words};
  conv.step_offset = c.offsets.data();
  conv.row_bytes = Case::kRowBytes;
  conv.weights = c.weights.data();
  conv.block_bytes = c.l.depth() * 16;
  conv.channels = channels;
  conv.epilogue = {c.correction.data(),
                   c.multiplier.data(),
                   c.offset.data(),
                   skipped ? c.skip.data() : nullptr,
                   7,
                   0.25F,
                   {quant::Activation::kRelu6, 90.0F, 20.0F}};
  const int64_t panels = (channels + kPanel - 1) / kPanel;

  std::vector<uint8_t> codes(rows * channels + 64, kUntouched);
  conv.codes = codes.data();
  // In two parts, as two threads would.
  conv_tiles(conv, pairs.data(), static_cast<int64_t>(pairs.size()), 0, panels / 2);
  conv_tiles(conv, pairs.data(), static_cast<int64_t>(pairs.size()), panels / 2, panels);
  std::vector<float> values(rows * channels + 16, -1.0F);
  conv.codes = nullptr;
  conv.values = values.data();
  conv.epilogue.stage = {quant::Activation::kNone, 6.0F, 0.0F};
  conv_tiles(conv, pairs.data(), static_cast<int64_t>(pairs.size()), 0, panels);

  int64_t wrong = 0;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t o = 0; o < channels; ++o) {
      const int64_t at = r * channels + o;
      if (r % 5 == 0) {
        wrong += codes[at] != kUntouched || values[at] != -1.0F;
        continue;
      }
      const float v = c.value(r, o, skipped);
      const float active = quant::activate(v, quant::Activation::kRelu6, 90.0F);
      wrong += codes[at] != quant::to_code(active, 20.0F);
      wrong += values[at] != v;
    }
  }
  for (size_t i = rows * channels; i < codes.size(); ++i) wrong += codes[i] != kUntouched;
  for (size_t i = rows * channels; i < values.size(); ++i) wrong += values[i] != -1.0F;
  CHECK(wrong == 0);
}

TEST_CASE("the depth of a tile covers its words with equal steps", "[integer]") {
  for (int64_t words = 1; words < 500; ++words) {
    const auto depth = tile_depth(words);
    CHECK(depth.words <= 16);
    CHECK(depth.steps * depth.words >= words);
    CHECK((depth.steps - 1) * 16 < words);
  }
}

}  // namespace
}  // namespace horizon::cpu

#endif
