#include <ATen/ATen.h>

#include <limits>
#include <vector>

#include "catch.h"
#include "host_runner.h"
#include "ops/cuda/fake_quantize.h"
#include "ops/cuda/quantize_activation.h"
#include "ops/cuda/weights.h"

// Quantizers, grids and weights of CUDA, run on the host, against the CPU's kernels: equal to the
// bit, NaN included, with the same strides.
namespace ops = horizon::ops;
namespace cuda = horizon::ops::cuda;

namespace {

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16};

at::Tensor number(double value) { return at::scalar_tensor(value, at::kFloat); }
at::Tensor integer(int64_t value, at::ScalarType type = at::kInt) {
  return at::scalar_tensor(value, type);
}

at::Tensor randoms(at::IntArrayRef sizes) { return at::randn(sizes, at::kFloat) * 4.0; }

/// Lengths around a piece, a block and several of each; strides; a misaligned start.
std::vector<at::Tensor> inputs(at::ScalarType type) {
  std::vector<at::Tensor> out;
  for (const int64_t n : {0, 1, 3, 7, 8, 9, 31, 32, 33, 255, 2047, 2049, 5003}) {
    out.push_back(randoms({n}));
  }
  out.push_back(randoms({}));
  out.push_back(randoms({2, 5, 3, 7}));
  out.push_back(randoms({2, 5, 3, 7}).contiguous(at::MemoryFormat::ChannelsLast));
  out.push_back(randoms({0, 5, 3, 7}));
  out.push_back(randoms({7, 6}).t());
  for (at::Tensor& x : out) x = x.to(type);
  out.push_back(randoms({65}).to(type).slice(0, 1));
  out.push_back(randoms({6, 8}).to(type).slice(1, 0, 8, 2));
  return out;
}

void spoil(const at::Tensor& x) {
  if (x.numel() < 4 || !x.is_contiguous()) return;
  const at::Tensor flat = x.view({-1});
  flat[0] = std::numeric_limits<double>::infinity();
  flat[1] = -std::numeric_limits<double>::infinity();
  flat[2] = std::numeric_limits<double>::quiet_NaN();
}

void check_equal(const at::Tensor& actual, const at::Tensor& expected) {
  CHECK(actual.scalar_type() == expected.scalar_type());
  REQUIRE(actual.sizes() == expected.sizes());
  CHECK(actual.strides() == expected.strides());
  if (!at::isFloatingType(actual.scalar_type())) {
    CHECK(at::equal(actual, expected));
    return;
  }
  const at::Tensor nan = expected.isnan();
  CHECK(at::equal(actual.isnan(), nan));
  CHECK(at::equal(actual.masked_fill(nan, 0), expected.masked_fill(nan, 0)));
}

ops::QuantizerArgs quantizer(int64_t preset, int64_t observer) {
  ops::QuantizerArgs q;
  q.min_val = number(-0.5);
  q.max_val = number(0.75);
  q.observed = integer(0, at::kLong);
  q.scale = number(0.0213);
  q.zero_point = integer(preset == 2 ? 23 : 0);
  q.preset = preset;
  q.observer = observer;
  q.averaging_constant = 0.3;
  q.skip_nonfinite = true;
  return q;
}

ops::QuantizerArgs copy(ops::QuantizerArgs q) {
  for (auto* t : {&q.min_val, &q.max_val, &q.observed, &q.scale, &q.zero_point}) *t = (*t)->clone();
  return q;
}

void check_same_state(const ops::QuantizerArgs& actual, const ops::QuantizerArgs& expected) {
  check_equal(*actual.min_val, *expected.min_val);
  check_equal(*actual.max_val, *expected.max_val);
  check_equal(*actual.observed, *expected.observed);
  check_equal(*actual.scale, *expected.scale);
  check_equal(*actual.zero_point, *expected.zero_point);
}

struct Range {
  int64_t zero_point, lo, hi;
};
// The last two need the wide formula in fp32.
const Range kRanges[] = {
    {0, -128, 127}, {23, 0, 255}, {7000000, -8388608, 8388607}, {2000000000, 0, 2147483647}};

}  // namespace

TEST_CASE("fake quantization on CUDA is the CPU's", "[cuda]") {
  at::manual_seed(1);
  const HostRunner runner{GENERATE(false, true)};
  for (const at::ScalarType type : kTypes) {
    for (const at::Tensor& x : inputs(type)) {
      CAPTURE(type, x.sizes(), x.strides());
      spoil(x);
      for (const Range& r : kRanges) {
        const at::Tensor scale = number(r.hi > 1000 ? 1e-6 : 0.043);
        const at::Tensor z = integer(r.zero_point, at::kLong);
        const auto [y, mask] = cuda::fake_quantize_per_tensor_mask(runner, x, scale, z, r.lo, r.hi);
        const auto [y_cpu, mask_cpu] = ops::fake_quantize_per_tensor_mask(x, scale, z, r.lo, r.hi);
        check_equal(y, y_cpu);
        check_equal(mask, mask_cpu);
        check_equal(cuda::fake_quantize_per_tensor(runner, x, scale, z, r.lo, r.hi), y_cpu);
        for (int64_t axis = 0; axis < x.dim(); ++axis) {
          const at::Tensor scales = scale * (at::rand({x.size(axis)}) + 0.5);
          const at::Tensor points =
              z - at::randint(0, 5, {x.size(axis)}, at::kLong).clamp_max(r.zero_point - r.lo);
          const auto [v, bits] =
              cuda::fake_quantize_per_channel_mask(runner, x, scales, points, axis, r.lo, r.hi);
          const auto [v_cpu, bits_cpu] =
              ops::fake_quantize_per_channel_mask(x, scales, points, axis, r.lo, r.hi);
          check_equal(v, v_cpu);
          check_equal(bits, bits_cpu);
          check_equal(cuda::fake_quantize_per_channel(runner, x, scales, points, axis, r.lo, r.hi),
                      v_cpu);
        }
      }
    }
  }
}

TEST_CASE("masked gradients and codes on CUDA are the CPU's", "[cuda]") {
  at::manual_seed(2);
  const HostRunner runner{GENERATE(false, true)};
  const at::Tensor scale = number(0.043);
  const at::Tensor z = integer(119);
  for (const at::ScalarType type : kTypes) {
    for (const at::Tensor& x : inputs(type)) {
      CAPTURE(type, x.sizes(), x.strides());
      const at::Tensor q = cuda::quantize(runner, x, scale, z);
      check_equal(q, ops::quantize(x, scale, z));
      check_equal(cuda::dequantize(runner, q, scale, z, type), ops::dequantize(q, scale, z, type));
      spoil(x);
      const at::Tensor mask = at::randint(0, 256, {(x.numel() + 7) / 8}, at::kByte);
      std::vector<int64_t> order;
      for (int64_t i = x.dim(); i-- > 0;) order.push_back(i);
      check_equal(cuda::mask_gradient(runner, x, mask, order), ops::mask_gradient(x, mask, order));
    }
  }
}

TEST_CASE("NaN has the zero point as its code on CUDA", "[cuda]") {
  const at::Tensor x = at::full({3}, std::numeric_limits<float>::quiet_NaN());
  const at::Tensor codes = cuda::quantize(HostRunner{}, x, number(0.5), integer(119));
  CHECK(at::equal(codes, at::full({3}, 119, at::kByte)));
}

TEST_CASE("scales and zero points that no check can see stay defined on CUDA", "[cuda]") {
  const at::Tensor x = at::tensor(at::ArrayRef<float>({-3.0F, 0.0F, 3.0F}));
  for (const double s : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN(),
                         std::numeric_limits<double>::infinity()}) {
    for (const int64_t z : {int64_t{-7}, int64_t{1} << 40, int64_t{300}}) {
      const at::Tensor point = integer(z, at::kLong);
      CHECK(cuda::quantize(HostRunner{}, x, number(s), point).numel() == 3);
      CHECK(cuda::fake_quantize_per_tensor(HostRunner{}, x, number(s), point, 0, 255).numel() == 3);
    }
  }
}

TEST_CASE("quantizers on CUDA move and apply grids as the CPU's do", "[cuda]") {
  at::manual_seed(3);
  const HostRunner runner{GENERATE(false, true)};
  for (const at::ScalarType type : kTypes) {
    for (const at::Tensor& x : inputs(type)) {
      CAPTURE(type, x.sizes(), x.strides());
      for (const int64_t preset : {0, 1, 2}) {
        for (const int64_t observer : {0, 1, 2}) {
          ops::QuantizerArgs q = quantizer(preset, observer);
          ops::QuantizerArgs q_cpu = copy(q);
          // The first batch sets the range, the second moves it; then one that does not observe.
          for (int step = 0; step < 3; ++step) {
            q.observe = q_cpu.observe = step != 2;
            q.fake_quantize = q_cpu.fake_quantize = step != 1;
            const auto [y, s, z, mask] = cuda::quantize_values(runner, x, q, true);
            const auto [y_cpu, s_cpu, z_cpu, mask_cpu] = ops::quantize_activation_mask(x, q_cpu);
            check_equal(y, y_cpu);
            check_equal(s, s_cpu);
            check_equal(z, z_cpu);
            check_equal(mask, mask_cpu);
            check_same_state(q, q_cpu);
          }
          cuda::observe_(runner, x, *q.min_val, *q.max_val, *q.observed, *q.scale, *q.zero_point,
                         preset, observer, 0.25, true);
          ops::observe_(x, *q_cpu.min_val, *q_cpu.max_val, *q_cpu.observed, *q_cpu.scale,
                        *q_cpu.zero_point, preset, observer, 0.25, true);
          check_same_state(q, q_cpu);
        }
      }
    }
  }
}

TEST_CASE("a batch that is not finite moves no range on CUDA", "[cuda]") {
  for (const double bad :
       {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    for (const int64_t at : {0, 700, 4998}) {
      const at::Tensor x = randoms({5000});
      x[at] = bad;
      const ops::QuantizerArgs q = quantizer(0, 0);
      const ops::QuantizerArgs before = copy(q);
      cuda::observe_(HostRunner{}, x, *q.min_val, *q.max_val, *q.observed, *q.scale, *q.zero_point,
                     0, 0, 0.25, false);
      check_same_state(q, before);
    }
  }
}

TEST_CASE("weights on CUDA lie on the CPU's grids", "[cuda]") {
  at::manual_seed(4);
  const HostRunner runner{GENERATE(false, true)};
  struct Case {
    std::vector<int64_t> sizes;
    int64_t base, groups;
  };
  const Case cases[] = {{{5, 3, 3, 3}, 0, 1},   {{8, 1, 5, 5}, 0, 8}, {{300, 70, 1, 1}, 0, 1},
                        {{6, 4, 3, 3}, 1, 1},   {{6, 4, 2, 3}, 1, 3}, {{0, 3, 3, 3}, 0, 1},
                        {{4, 0, 3, 3}, 1, 2},   {{6, 5000}, 2, 1},    {{7, 0}, 2, 1},
                        {{64, 33, 3, 3}, 1, 2}, {{3, 4, 0, 3}, 0, 1}};
  for (const at::ScalarType type : kTypes) {
    for (const Case& c : cases) {
      for (const bool last : {false, true}) {
        at::Tensor w = randoms(c.sizes).to(type);
        if (last && w.dim() == 4) w = w.contiguous(at::MemoryFormat::ChannelsLast);
        if (last && w.dim() == 2) w = w.t().contiguous().t();
        CAPTURE(type, w.sizes(), w.strides(), c.base, c.groups);
        const at::Tensor scale = ops::weight_scale(w, c.base, c.groups);
        check_equal(cuda::weight_scale(runner, w, c.base, c.groups), scale);
        check_equal(cuda::quantize_weight(runner, w, scale, c.base, c.groups),
                    ops::quantize_weight(w, scale, c.base, c.groups));
        check_equal(cuda::fake_quantize_weight(runner, w, c.base, c.groups),
                    ops::fake_quantize_weight(w, c.base, c.groups));
        spoil(w);
        check_equal(cuda::weight_scale(runner, w, c.base, c.groups),
                    ops::weight_scale(w, c.base, c.groups));
        check_equal(cuda::fake_quantize_weight(runner, w, c.base, c.groups),
                    ops::fake_quantize_weight(w, c.base, c.groups));
      }
    }
  }
}
