#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "catch.h"
#include "ops/cpu/kernels/fused.h"
#include "quant/fake_quantize.h"

namespace cpu = horizon::cpu;
namespace quant = horizon::quant;
using cpu::FusedRows;

namespace {

struct Table {
  std::string name;
  const cpu::FusedKernels* kernels;
};

// Every instruction set that this machine has, the generic one first.
std::vector<Table> tables() {
  std::vector<Table> all{{"generic", &cpu::generic::fused_kernels()}};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0) {
    all.push_back({"avx2", &cpu::avx2::fused_kernels()});
  }
  if (__builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
      __builtin_cpu_supports("avx512vl") != 0) {
    all.push_back({"avx512", &cpu::avx512::fused_kernels()});
  }
#endif
  return all;
}

// Whole and partial registers, lane groups, blocks and tiles; short last rows without channels.
const FusedRows kLayouts[] = {
    {4096, 256, 64, false},
    {4000, 256, 64, false},
    {100, 288, 72, false},
    {67 * 70, 67, 67, false},
    {40 * 96, 96, 3, false},
    {33 * 544 + 17, 544, 17, false},
    {300 * 640, 640, 640, false},
    {12 * 1, 1, 3, true},
    {12 * 49, 49, 3, true},
    {6 * 31, 31, 2, true},
    {6 * 257, 257, 6, true},
    {2 * 20000, 20000, 1, true},
    {0, 32, 8, false},
};

std::string text(const FusedRows& rows) {
  return std::to_string(rows.total) + " in rows of " + std::to_string(rows.length) +
         (rows.per_row ? ", NCHW" : ", channels last");
}

int64_t channel(const FusedRows& rows, int64_t i) {
  return rows.per_row ? i / rows.length % rows.channels : i % rows.length % rows.channels;
}

bool bit(const std::vector<uint8_t>& mask, const FusedRows& rows, int64_t i) {
  const int64_t at = i % rows.length;
  return (mask[static_cast<size_t>(i / rows.length * rows.mask_stride() + at / 8)] >> (at % 8) & 1);
}

template <typename T>
struct Case {
  explicit Case(const FusedRows& layout, unsigned seed = 1) : rows(layout) {
    std::mt19937 random(seed);
    std::normal_distribution<double> normal(0.3, 2.0);
    const auto fill = [&](std::vector<T>& v, int64_t size) {
      v.resize(static_cast<size_t>(size));
      for (T& x : v) x = static_cast<T>(normal(random));
    };
    const int64_t size = rows.per_row ? rows.channels : rows.length;
    for (auto* v : {&a, &b, &mean, &k, &k0}) {
      fill(*v, size);
      // Channels last: the same value for every pixel of a row.
      for (int64_t i = rows.channels; i < size; ++i) {
        (*v)[static_cast<size_t>(i)] = (*v)[static_cast<size_t>(i % rows.channels)];
      }
    }
    for (auto* v : {&z, &skip, &grad}) fill(*v, rows.total);
    mask.resize(static_cast<size_t>(rows.count() * rows.mask_stride()));
    for (uint8_t& byte : mask) byte = static_cast<uint8_t>(random());
  }
  T at(const std::vector<T>& v, int64_t i) const {
    return v[static_cast<size_t>(channel(rows, i))];
  }

  FusedRows rows;
  std::vector<T> a, b, mean, k, k0, z, skip, grad;
  std::vector<uint8_t> mask;
};

template <typename T>
cpu::FusedGrid<T> grid() {
  const float scale = 0.037F;
  return {true, static_cast<T>(scale), static_cast<T>(1.0F / scale), T(3), T(-128), T(127)};
}

template <typename T>
struct Applied {
  std::vector<T> y;
  std::vector<uint8_t> mask;
  T lo, hi;
};

template <typename T>
Applied<T> apply(const cpu::FusedKernels& kernels, const Case<T>& c, quant::Activation act,
                 bool skip, bool quantize, bool in_place) {
  Applied<T> out{c.z, std::vector<uint8_t>(c.mask.size(), 0xAA), 0, 0};
  cpu::FusedApply<T> args;
  args.rows = c.rows;
  args.z = in_place ? out.y.data() : c.z.data();
  args.a = c.a.data();
  args.b = c.b.data();
  args.skip = skip ? c.skip.data() : nullptr;
  args.activation = act;
  if (quantize) args.grid = grid<T>();
  args.y = out.y.data();
  args.mask = out.mask.data();
  kernels.of<T>().range(args, 0, c.rows.count(), &out.lo, &out.hi);
  // In two parts, to see that rows are independent.
  const int64_t middle = c.rows.count() / 2;
  kernels.of<T>().apply(args, middle, c.rows.count());
  kernels.of<T>().apply(args, 0, middle);
  return out;
}

template <typename T>
bool same(const std::vector<T>& one, const std::vector<T>& two) {
  return one.size() == two.size() &&
         (one.empty() || std::memcmp(one.data(), two.data(), one.size() * sizeof(T)) == 0);
}

template <typename T>
struct Moments {
  explicit Moments(size_t size) : mean(size), m2(size), lo(size), hi(size) {}
  std::vector<double> mean, m2;
  std::vector<T> lo, hi;
};

template <typename T>
Moments<T> moments(const cpu::FusedKernels& kernels, const FusedRows& rows,
                   const std::vector<T>& z) {
  Moments<T> out(static_cast<size_t>(rows.per_row ? rows.count() : rows.length));
  const cpu::FusedMoments<T> pointers{out.mean.data(), out.m2.data(), out.lo.data(), out.hi.data()};
  const auto& table = kernels.of<T>();
  (rows.per_row ? table.row_moments : table.lane_moments)(rows, z.data(), 0, rows.count(), true,
                                                          pointers);
  return out;
}

template <typename T>
struct Gradients {
  std::vector<double> sum, product;
  std::vector<T> grad_z, grad_skip;
};

template <typename T>
Gradients<T> gradients(const cpu::FusedKernels& kernels, const Case<T>& c, bool masked,
                       bool statistics) {
  Gradients<T> out;
  cpu::FusedGradient<T> args;
  args.rows = c.rows;
  args.grad = c.grad.data();
  args.mask = masked ? c.mask.data() : nullptr;
  args.a = c.a.data();
  args.mean = c.mean.data();
  args.k = c.k.data();
  args.k0 = c.k0.data();
  args.z = statistics ? c.z.data() : nullptr;
  const auto size = static_cast<size_t>(c.rows.per_row ? c.rows.count() : c.rows.length);
  out.sum.resize(size);
  out.product.resize(size);
  const auto& table = kernels.of<T>();
  (c.rows.per_row ? table.row_sums : table.lane_sums)(args, 0, c.rows.count(), out.sum.data(),
                                                      out.product.data());
  out.grad_z.resize(c.z.size());
  out.grad_skip.resize(c.z.size());
  args.grad_z = out.grad_z.data();
  args.grad_skip = out.grad_skip.data();
  table.gradient(args, 0, c.rows.count());
  return out;
}

const quant::Activation kActivations[] = {quant::Activation::kNone, quant::Activation::kRelu,
                                          quant::Activation::kRelu6};

}  // namespace

TEMPLATE_TEST_CASE("the fused epilogue is the formula, element by element, on every path",
                   "[fused]", float, double) {
  using T = TestType;
  for (const FusedRows& rows : kLayouts) {
    const Case<T> c(rows);
    for (const auto act : kActivations) {
      for (const bool skip : {false, true}) {
        for (const bool quantize : {false, true}) {
          INFO(text(rows) << ", act " << static_cast<int>(act) << ", skip " << skip);
          std::vector<T> expected(c.z.size());
          std::vector<bool> passes(c.z.size());
          T lo = std::numeric_limits<T>::infinity(), hi = -lo;
          for (int64_t i = 0; i < rows.total; ++i) {
            const auto at = static_cast<size_t>(i);
            T v = std::fma(c.at(c.a, i), c.z[at], c.at(c.b, i));
            if (skip) v = v + c.skip[at];
            passes[at] = act == quant::Activation::kNone ||
                         (v > 0 && (act == quant::Activation::kRelu || v < 6));
            v = quant::activate(v, act, T(6));
            lo = v < lo ? v : lo;
            hi = v > hi ? v : hi;
            const auto g = grid<T>();
            if (quantize) {
              passes[at] =
                  passes[at] && quant::passes_gradient(v, g.inv_scale, g.zero_point, g.lo, g.hi);
              v = quant::fake_quantize(v, g.scale, g.inv_scale, g.zero_point, g.lo, g.hi);
            }
            expected[at] = v;
          }
          for (const Table& table : tables()) {
            INFO(table.name);
            for (const bool in_place : {false, true}) {
              const auto out = apply(*table.kernels, c, act, skip, quantize, in_place);
              CHECK(same(out.y, expected));
              CHECK(out.lo == lo);
              CHECK(out.hi == hi);
              int64_t wrong = 0;
              for (int64_t i = 0; i < rows.total; ++i) {
                wrong += bit(out.mask, rows, i) != passes[static_cast<size_t>(i)];
              }
              CHECK(wrong == 0);
            }
          }
        }
      }
    }
  }
}

TEMPLATE_TEST_CASE("moments are those of double, and the same bits on every path", "[fused]", float,
                   double) {
  using T = TestType;
  for (const FusedRows& rows : kLayouts) {
    for (const double center : {0.0, 1000.0}) {
      INFO(text(rows) << ", mean " << center);
      Case<T> c(rows);
      for (T& x : c.z) x = static_cast<T>((x - 0.3) / 2 + center);
      const auto first = moments(*tables().front().kernels, rows, c.z);
      const auto size = static_cast<int64_t>(first.mean.size());
      for (int64_t lane = 0; lane < size; ++lane) {
        double sum = 0, count = 0, m2 = 0;
        T lo = std::numeric_limits<T>::infinity(), hi = -lo;
        const int64_t begin = rows.per_row ? lane * rows.length : lane;
        const int64_t end = rows.per_row ? begin + rows.length : rows.total;
        const int64_t step = rows.per_row ? 1 : rows.length;
        for (int64_t i = begin; i < end; i += step) {
          const T x = c.z[static_cast<size_t>(i)];
          sum += x;
          count += 1;
          lo = x < lo ? x : lo;
          hi = x > hi ? x : hi;
        }
        if (count == 0) continue;
        for (int64_t i = begin; i < end; i += step) {
          const double d = c.z[static_cast<size_t>(i)] - sum / count;
          m2 += d * d;
        }
        const auto at = static_cast<size_t>(lane);
        // fp32: deviations of order 1 around a rounded centre, at most 2^14 of them in a sum.
        const double tolerance = sizeof(T) == 4 ? 2e-5 : 1e-11;
        CHECK(std::abs(first.mean[at] - sum / count) <= tolerance * (1 + std::abs(center) * 1e-3));
        CHECK(std::abs(first.m2[at] - m2) <= tolerance * (m2 + 1e-6 * count));
        CHECK(first.lo[at] == lo);
        CHECK(first.hi[at] == hi);
      }
      for (const Table& table : tables()) {
        INFO(table.name);
        const auto other = moments(*table.kernels, rows, c.z);
        CHECK(same(first.mean, other.mean));
        CHECK(same(first.m2, other.m2));
        CHECK(same(first.lo, other.lo));
        CHECK(same(first.hi, other.hi));
      }
    }
  }
}

TEMPLATE_TEST_CASE("NaN anywhere makes the extremes of its lane NaN", "[fused]", float, double) {
  using T = TestType;
  for (const FusedRows& rows : kLayouts) {
    if (rows.total == 0) continue;
    for (const int64_t where : {int64_t{0}, rows.total / 2, rows.total - 1}) {
      Case<T> c(rows);
      c.z[static_cast<size_t>(where)] = std::numeric_limits<T>::quiet_NaN();
      for (const Table& table : tables()) {
        INFO(table.name << ", " << text(rows) << ", at " << where);
        const auto out = moments(*table.kernels, rows, c.z);
        const int64_t lane = rows.per_row ? where / rows.length : where % rows.length;
        for (size_t i = 0; i < out.lo.size(); ++i) {
          CHECK(std::isnan(out.lo[i]) == (static_cast<int64_t>(i) == lane));
          CHECK(std::isnan(out.hi[i]) == (static_cast<int64_t>(i) == lane));
        }
        const auto applied = apply(*table.kernels, c, quant::Activation::kRelu, true, true, false);
        CHECK(std::isnan(applied.lo));
        CHECK(std::isnan(applied.hi));
        CHECK(std::isnan(applied.y[static_cast<size_t>(where)]));
        CHECK_FALSE(bit(applied.mask, rows, where));
      }
    }
  }
}

TEMPLATE_TEST_CASE("gradients are those of double, and the same bits on every path", "[fused]",
                   float, double) {
  using T = TestType;
  const double unit = std::numeric_limits<T>::epsilon();
  for (const FusedRows& rows : kLayouts) {
    const Case<T> c(rows, 5);
    for (const bool masked : {false, true}) {
      for (const bool statistics : {false, true}) {
        INFO(text(rows) << ", mask " << masked << ", statistics " << statistics);
        const auto first = gradients(*tables().front().kernels, c, masked, statistics);
        std::vector<double> sum(first.sum.size()), product(sum.size()), size(sum.size());
        for (int64_t i = 0; i < rows.total; ++i) {
          const auto at = static_cast<size_t>(i);
          const auto lane = static_cast<size_t>(rows.per_row ? i / rows.length : i % rows.length);
          const double g = masked && !bit(c.mask, rows, i) ? 0.0 : c.grad[at];
          const double d = static_cast<double>(c.z[at]) - c.at(c.mean, i);
          sum[lane] += g;
          product[lane] += g * d;
          size[lane] += std::abs(g) * (1 + std::abs(d));
          CHECK(first.grad_skip[at] == static_cast<T>(g));
          const double scaled = c.at(c.a, i) * g;
          const double pull = statistics ? c.at(c.k, i) * d + c.at(c.k0, i) : 0.0;
          const double bound = std::abs(scaled) + std::abs(pull) + std::abs(c.at(c.k0, i)) +
                               std::abs(c.at(c.k, i) * c.z[at]) +
                               std::abs(c.at(c.k, i) * c.at(c.mean, i));
          CHECK(std::abs(first.grad_z[at] - (scaled + pull)) <= 4 * unit * bound);
        }
        for (size_t lane = 0; lane < sum.size(); ++lane) {
          CHECK(std::abs(first.sum[lane] - sum[lane]) <= 64 * unit * size[lane]);
          if (!statistics) continue;
          CHECK(std::abs(first.product[lane] - product[lane]) <= 64 * unit * size[lane]);
        }
        for (const Table& table : tables()) {
          INFO(table.name);
          const auto other = gradients(*table.kernels, c, masked, statistics);
          CHECK(same(first.sum, other.sum));
          CHECK(same(first.product, other.product));
          CHECK(same(first.grad_z, other.grad_z));
          CHECK(same(first.grad_skip, other.grad_skip));
        }
      }
    }
  }
}
