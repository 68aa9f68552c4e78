#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "catch.h"
#include "ops/cpu/kernels/fused.h"
#include "ops/cuda/kernels/fused_gradient.h"
#include "ops/cuda/kernels/fused_statistics.h"
#include "quant/fake_quantize.h"

// The bodies of the training op's CUDA kernels over many blocks, on the host, against references
// in double and the CPU's kernels.
namespace cpu = horizon::cpu;
namespace cuda = horizon::ops::cuda;
namespace quant = horizon::quant;
using cuda::ChannelCut;
using cuda::run_on_host;
using horizon::ops::FusedRows;

namespace {

// One and several blocks, with tails; rows of one element; more channels than a block has lanes.
const FusedRows kLayouts[] = {
    {4096, 256, 64, false},       {100, 288, 72, false},        {67 * 70, 67, 67, false},
    {5000 * 3, 384, 3, false},    {40001, 256, 1, false},       {3000 * 17, 544, 17, false},
    {300 * 640, 640, 640, false}, {700 * 130, 260, 130, false}, {129 * 3, 516, 129, false},
    {12 * 1, 1, 3, true},         {12 * 49, 49, 3, true},       {600 * 49, 49, 3, true},
    {6 * 257, 257, 6, true},      {2 * 50000, 50000, 1, true},  {4 * 3 * 8191, 8191, 3, true},
    {0, 256, 8, false},
};

std::string text(const FusedRows& rows) {
  return std::to_string(rows.total) + " in rows of " + std::to_string(rows.length) + ", " +
         std::to_string(rows.channels) + (rows.per_row ? " channels, NCHW" : " channels, last");
}

int64_t channel_of(const FusedRows& rows, int64_t i) {
  return rows.per_row ? i / rows.length % rows.channels : i % rows.channels;
}

std::vector<float> normal(int64_t size, unsigned seed, double mean = 0.3, double deviation = 2.0) {
  std::mt19937 random(seed);
  std::normal_distribution<double> draw(mean, deviation);
  std::vector<float> values(static_cast<size_t>(size));
  for (float& x : values) x = static_cast<float>(draw(random));
  return values;
}

/// Keeps the merged sums.
template <typename Sum>
struct Keep {
  Sum* sums;
  void operator()(int64_t channel, const Sum& sum) const { sums[channel] = sum; }
};

template <typename Sum, typename Tile>
std::vector<Sum> reduce(const FusedRows& rows, const Tile& tile, bool backwards) {
  const ChannelCut cut(rows);
  std::vector<Sum> partials(static_cast<size_t>(cut.partials()));
  if (cut.chunks != 0) {
    run_on_host(cut.grid(), cuda::ReduceChannels<Sum, Tile>{cut, tile, partials.data()}, backwards);
  }
  std::vector<Sum> sums(static_cast<size_t>(rows.channels));
  using Body = cuda::FinishChannels<Sum, Keep<Sum>>;
  run_on_host(Body::grid(rows.channels),
              Body{partials.data(), cut.chunks, rows.channels, {sums.data()}}, backwards);
  return sums;
}

std::vector<cuda::Moments<float>> moments(const FusedRows& rows, const float* z,
                                          bool backwards = false) {
  using Tile = cuda::MomentsOfTile<cuda::ReadValues<float, float>, float>;
  return reduce<cuda::Moments<float>>(rows, Tile{{z}}, backwards);
}

struct Reference {
  double count = 0, mean = 0, m2 = 0;
  float lo = std::numeric_limits<float>::infinity();
  float hi = -std::numeric_limits<float>::infinity();
};

std::vector<Reference> reference_moments(const FusedRows& rows, const float* z) {
  std::vector<Reference> result(static_cast<size_t>(rows.channels));
  for (int64_t i = 0; i < rows.total; ++i) {
    Reference& r = result[static_cast<size_t>(channel_of(rows, i))];
    r.count += 1;
    r.mean += z[i];
    r.lo = std::min(r.lo, z[i]);
    r.hi = std::max(r.hi, z[i]);
  }
  for (Reference& r : result) r.mean = r.count == 0 ? 0 : r.mean / r.count;
  for (int64_t i = 0; i < rows.total; ++i) {
    Reference& r = result[static_cast<size_t>(channel_of(rows, i))];
    r.m2 += (z[i] - r.mean) * (z[i] - r.mean);
  }
  return result;
}

}  // namespace

TEST_CASE("moments are those of double arithmetic, in every layout and order", "[cuda]") {
  for (const FusedRows& rows : kLayouts) {
    // |mean| / deviation of 1000 loses ten bits of fp32 in the values themselves, not in the sums.
    for (const double mean : {0.3, 2000.0}) {
      // Pointers at multiples of 16 bytes, and of 4.
      for (const size_t shift : {size_t{0}, size_t{1}}) {
        INFO(text(rows) << ", mean " << mean << ", shift " << shift);
        const std::vector<float> z = normal(rows.total + 1, 1, mean);
        const auto got = moments(rows, z.data() + shift);
        const auto turned = moments(rows, z.data() + shift, true);
        const auto expected = reference_moments(rows, z.data() + shift);
        bool same = true, close = true, extremes = true;
        for (size_t c = 0; c < got.size(); ++c) {
          same = same && got[c].mean == turned[c].mean && got[c].m2 == turned[c].m2;
          const double deviation = std::sqrt(expected[c].m2 / std::max(expected[c].count, 1.0));
          close = close && got[c].count == expected[c].count &&
                  std::abs(got[c].mean - expected[c].mean) <= 2e-7 * deviation + 1e-12 * mean &&
                  std::abs(got[c].m2 - expected[c].m2) <= 1e-6 * expected[c].m2;
          extremes = extremes && got[c].lo == expected[c].lo && got[c].hi == expected[c].hi;
        }
        CHECK(same);
        CHECK(close);
        CHECK(extremes);
      }
    }
  }
}

TEST_CASE("a first value far from all others costs a variance no accuracy that shows", "[cuda]") {
  // The pivot of the first thread is then off by 1e4 deviations.
  for (const bool per_row : {false, true}) {
    const FusedRows rows{65536, per_row ? 65536 : 256, 1, per_row};
    std::vector<float> z = normal(rows.total, 3, 0.0, 1.0);
    z[0] = 1e4F;
    const auto got = moments(rows, z.data());
    const auto expected = reference_moments(rows, z.data());
    CHECK(std::abs(got[0].m2 - expected[0].m2) <= 1e-5 * expected[0].m2);
    CHECK(std::abs(got[0].mean - expected[0].mean) <= 1e-5);
  }
}

TEST_CASE("NaN in a channel shows in its extremes and in no other channel", "[cuda]") {
  for (const FusedRows& rows : kLayouts) {
    if (rows.total == 0) continue;
    INFO(text(rows));
    std::vector<float> z = normal(rows.total, 2);
    const int64_t at = rows.total - 1;
    z[static_cast<size_t>(at)] = std::nanf("");
    const auto got = moments(rows, z.data());
    for (int64_t c = 0; c < rows.channels; ++c) {
      const auto& m = got[static_cast<size_t>(c)];
      const bool hit = c == channel_of(rows, at);
      CHECK((std::isnan(m.lo) && std::isnan(m.hi) && std::isnan(m.mean)) == hit);
    }
  }
}

TEST_CASE("the range of a batch with NaN or infinity stays, a finite one moves it", "[cuda]") {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::nanf("");
  struct Row {
    std::vector<float> lo, hi;
    float min_val, max_val;
    int64_t observed;
  };
  // From [-1, 1] with c = 0.5: r + 0.5 (x - r).
  const Row rows[] = {
      {{-3.0F, -2.0F}, {0.0F, 5.0F}, -2.0F, 3.0F, 8},
      {{nan, -2.0F}, {nan, 5.0F}, -1.0F, 1.0F, 7},
      {{-3.0F, -inf}, {0.0F, 1.0F}, -1.0F, 1.0F, 7},
      {{-3.0F, -2.0F}, {0.0F, inf}, -1.0F, 1.0F, 7},
      {{}, {}, -1.0F, 1.0F, 7},
  };
  for (const Row& row : rows) {
    float min_val = -1, max_val = 1, scale = 0.5F, out_scale = 0;
    int64_t observed = 7, tracked = 2;
    int32_t zero_point = 3, out_zero_point = 0;
    cuda::DeviceGrid<float> grid{};
    cuda::FinishRange<float> body;
    body.lo = row.lo.data();
    body.hi = row.hi.data();
    body.count = static_cast<int64_t>(row.lo.size());
    body.state = {&min_val, &max_val, &observed, &scale, &zero_point};
    body.averaging_constant = 0.5F;
    body.preset = quant::Preset::kTensorrt;
    body.grid = &grid;
    body.out_scale = &out_scale;
    body.out_zero_point = &out_zero_point;
    body.tracked = &tracked;
    run_on_host({}, body);
    CHECK(min_val == row.min_val);
    CHECK(max_val == row.max_val);
    CHECK(observed == row.observed);
    const bool moved = row.observed == 8;
    CHECK(scale == (moved ? 3.0F / 127.0F : 0.5F));  // max(|-2|, |3|) / 127
    CHECK(out_scale == scale);
    CHECK(out_zero_point == (moved ? 128 : 131));  // stored: 128 added
    CHECK(grid.scale == scale);
    CHECK(grid.inv_scale == 1.0F / scale);
    CHECK(grid.lo == -128.0F);
    CHECK(grid.hi == 127.0F);
    CHECK(tracked == 3);
  }
}

TEST_CASE("outputs, masks and extremes have the bits of the CPU's kernels", "[cuda]") {
  const cpu::FusedKernelsOf<float>& kernels = cpu::fused_kernels().of<float>();
  for (const FusedRows& rows : kLayouts) {
    if (rows.total == 0) continue;
    for (const bool with_skip : {false, true}) {
      for (const auto act :
           {quant::Activation::kNone, quant::Activation::kRelu, quant::Activation::kRelu6}) {
        INFO(text(rows) << ", skip " << with_skip << ", activation " << static_cast<int>(act));
        const auto size = static_cast<size_t>(rows.total);
        std::vector<float> z = normal(rows.total, 4), skip = normal(rows.total, 5);
        z[size / 2] = std::nanf("");
        const std::vector<float> a = normal(rows.channels, 6), b = normal(rows.channels, 7);
        const cuda::DeviceGrid<float> grid{0.05F, 1.0F / 0.05F, 3, -128, 127};

        std::vector<float> tiled_a, tiled_b;
        const int64_t width = rows.per_row ? rows.channels : rows.length;
        for (int64_t i = 0; i < width; ++i) {
          tiled_a.push_back(a[static_cast<size_t>(i % rows.channels)]);
          tiled_b.push_back(b[static_cast<size_t>(i % rows.channels)]);
        }
        std::vector<float> expected(size), got(size);
        std::vector<uint8_t> expected_mask(static_cast<size_t>(rows.mask_bytes()));
        std::vector<uint8_t> mask(expected_mask.size(), 0xff);
        cpu::FusedApply<float> reference;
        reference.rows = rows;
        reference.z = z.data();
        reference.a = tiled_a.data();
        reference.b = tiled_b.data();
        if (with_skip) reference.skip = skip.data();
        reference.y = expected.data();
        reference.mask = expected_mask.data();
        reference.activation = act;
        reference.grid = {true, grid.scale, grid.inv_scale, grid.zero_point, grid.lo, grid.hi};
        kernels.apply(reference, 0, rows.count());

        cuda::FusedValue<float, float, float> value;
        value.rows = rows;
        value.z = z.data();
        value.a = a.data();
        value.b = b.data();
        if (with_skip) value.skip = skip.data();
        value.activation = act;
        const cuda::FusedApply<float, float, float, float> body{value, &grid, got.data(),
                                                                mask.data()};
        run_on_host(cuda::piece_grid(cuda::pieces(rows)), body);
        CHECK(std::memcmp(got.data(), expected.data(), size * sizeof(float)) == 0);
        CHECK(mask == expected_mask);
        // The same with fewer blocks than pieces.
        std::vector<float> again(size);
        cuda::FusedApply<float, float, float, float> few = body;
        few.y = again.data();
        run_on_host({2, 1, 1}, few, true);
        CHECK(std::memcmp(again.data(), expected.data(), size * sizeof(float)) == 0);

        z[size / 2] = 0.25F;
        float lo = 0, hi = 0;
        kernels.range(reference, 0, rows.count(), &lo, &hi);
        const cuda::Grid blocks = cuda::piece_grid(cuda::pieces(rows), 3);
        std::vector<float> los(blocks.x), his(blocks.x);
        run_on_host(blocks,
                    cuda::FusedExtremes<float, float, float>{value, los.data(), his.data()});
        CHECK(*std::min_element(los.begin(), los.end()) == lo);
        CHECK(*std::max_element(his.begin(), his.end()) == hi);
      }
    }
  }
}

TEST_CASE("sums of gradients are those of double arithmetic, their gradient the CPU's", "[cuda]") {
  const cpu::FusedKernelsOf<float>& kernels = cpu::fused_kernels().of<float>();
  for (const FusedRows& rows : kLayouts) {
    if (rows.total == 0) continue;
    for (const bool masked : {false, true}) {
      INFO(text(rows) << ", mask " << masked);
      const auto size = static_cast<size_t>(rows.total);
      const std::vector<float> grad = normal(rows.total, 8), z = normal(rows.total, 9);
      const std::vector<float> mean = normal(rows.channels, 10), a = normal(rows.channels, 11);
      const std::vector<float> k = normal(rows.channels, 12), k0 = normal(rows.channels, 13);
      std::vector<uint8_t> bits(static_cast<size_t>(rows.mask_bytes()));
      std::mt19937 random(14);
      for (uint8_t& byte : bits) byte = static_cast<uint8_t>(random());

      std::vector<double> sum(static_cast<size_t>(rows.channels)), product = sum, size_of = sum;
      for (int64_t i = 0; i < rows.total; ++i) {
        const int64_t at = i % rows.length;
        const uint8_t byte =
            bits[static_cast<size_t>(i / rows.length * rows.mask_stride() + at / 8)];
        // Rows of whole bytes are one run of bits.
        if (masked && ((byte >> (at % 8)) & 1) == 0) continue;
        const auto c = static_cast<size_t>(channel_of(rows, i));
        const double g = grad[static_cast<size_t>(i)];
        const double p = g * (static_cast<double>(z[static_cast<size_t>(i)]) - mean[c]);
        sum[c] += g;
        product[c] += p;
        size_of[c] += std::abs(g) + std::abs(p);
      }
      cuda::GradientOfTile<float, float, float> tile;
      tile.rows = rows;
      tile.grad = grad.data();
      tile.mask = masked ? bits.data() : nullptr;
      tile.z = z.data();
      tile.mean = mean.data();
      const auto got = reduce<cuda::GradientSums>(rows, tile, false);
      const auto turned = reduce<cuda::GradientSums>(rows, tile, true);
      bool close = true, same = true;
      for (size_t c = 0; c < got.size(); ++c) {
        close = close && std::abs(got[c].sum - sum[c]) <= 1e-6 * size_of[c] &&
                std::abs(got[c].product - product[c]) <= 1e-6 * size_of[c];
        same = same && got[c].sum == turned[c].sum && got[c].product == turned[c].product;
      }
      CHECK(close);
      CHECK(same);

      const auto tiled = [&](const std::vector<float>& v) {
        std::vector<float> result;
        const int64_t width = rows.per_row ? rows.channels : rows.length;
        for (int64_t i = 0; i < width; ++i) {
          result.push_back(v[static_cast<size_t>(i % rows.channels)]);
        }
        return result;
      };
      const auto wide_a = tiled(a), wide_mean = tiled(mean), wide_k = tiled(k), wide_k0 = tiled(k0);
      std::vector<float> expected_z(size), expected_skip(size), got_z(size), got_skip(size);
      cpu::FusedGradient<float> reference;
      reference.rows = rows;
      reference.grad = grad.data();
      reference.mask = tile.mask;
      reference.z = z.data();
      reference.a = wide_a.data();
      reference.mean = wide_mean.data();
      reference.k = wide_k.data();
      reference.k0 = wide_k0.data();
      reference.grad_z = expected_z.data();
      reference.grad_skip = expected_skip.data();
      kernels.gradient(reference, 0, rows.count());
      cuda::FusedGradient<float, float, float, float> body;
      body.rows = rows;
      body.grad = grad.data();
      body.mask = tile.mask;
      body.z = z.data();
      body.a = a.data();
      body.mean = mean.data();
      body.k = k.data();
      body.k0 = k0.data();
      body.grad_z = got_z.data();
      body.grad_skip = got_skip.data();
      run_on_host(cuda::piece_grid(cuda::pieces(rows)), body);
      CHECK(got_z == expected_z);
      CHECK(got_skip == expected_skip);
    }
  }
}
