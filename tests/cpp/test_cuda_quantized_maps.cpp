#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "catch.h"
#include "host_runner.h"
#include "ops/cuda/quantized_maps.h"

// The elementwise integer ops of CUDA, run on the host, against the CPU's kernels: equal to the
// bit, with the same strides.
namespace ops = horizon::ops;
namespace cuda = horizon::ops::cuda;

namespace {

at::Tensor number(double value, at::ScalarType type = at::kFloat) {
  return at::scalar_tensor(value, type);
}

at::Tensor codes(at::IntArrayRef sizes) { return at::randint(0, 256, sizes, at::kByte); }

at::Tensor channels_last(at::IntArrayRef sizes) {
  return codes(sizes).contiguous(at::MemoryFormat::ChannelsLast);
}

/// Dense codes that begin `offset` bytes after an aligned address.
at::Tensor misaligned(at::IntArrayRef sizes, int64_t offset) {
  const int64_t count = c10::multiply_integers(sizes);
  return codes({count + offset}).slice(0, offset).view(sizes);
}

/// Lengths around a vector, a block and several of each.
std::vector<at::Tensor> operands() {
  std::vector<at::Tensor> out;
  for (const int64_t count : {0, 1, 3, 15, 16, 17, 31, 32, 33, 255, 256, 4095, 4097, 20011}) {
    out.push_back(codes({count}));
  }
  for (const int64_t offset : {1, 7, 8, 15}) out.push_back(misaligned({3, 5, 11}, offset));
  out.push_back(codes({}));
  out.push_back(codes({2, 3}));
  out.push_back(codes({2, 5, 7, 3}));
  out.push_back(codes({2, 0, 7, 3}));
  out.push_back(codes({3, 16, 16, 16}));
  out.push_back(channels_last({2, 5, 7, 3}));
  out.push_back(channels_last({2, 32, 9, 8}));
  out.push_back(channels_last({0, 32, 9, 8}));
  out.push_back(codes({4, 6, 9, 8}).slice(3, 1, 8, 2));
  out.push_back(codes({4, 6, 9, 8}).transpose(0, 2));
  out.push_back(codes({1, 6, 1, 8}).expand({3, 6, 5, 8}));
  return out;
}

std::string text(const at::Tensor& x) {
  std::ostringstream stream;
  stream << "sizes " << x.sizes() << ", strides " << x.strides() << ", offset "
         << x.storage_offset();
  return stream.str();
}

void check_equal(const at::Tensor& actual, const at::Tensor& expected) {
  REQUIRE(actual.sizes() == expected.sizes());
  CHECK(actual.strides() == expected.strides());
  CHECK(at::equal(actual, expected));
}

struct Grid {
  at::Tensor scale, zero_point;
  Grid(double s, int z) : scale(number(s)), zero_point(number(z, at::kInt)) {}
};

const Grid kA(0.037, 128);
const Grid kB(0.0213, 5);
const Grid kY(0.041, 119);

}  // namespace

TEST_CASE("sums and products of codes on CUDA are the CPU's", "[cuda]") {
  at::manual_seed(1);
  const HostRunner runner{GENERATE(false, true)};
  for (const at::Tensor& a : operands()) {
    CAPTURE(text(a));
    const at::Tensor same = codes(a.sizes());
    for (const at::Tensor& b : {same, codes({}), a.dim() == 4 ? codes({a.size(1), 1, 1}) : same}) {
      CAPTURE(text(b));
      for (const int64_t activation : {0, 1, 2}) {
        for (const double alpha : {1.0, -1.0}) {
          check_equal(
              cuda::quantized_add(runner, a, kA.scale, kA.zero_point, b, kB.scale, kB.zero_point,
                                  kY.scale, kY.zero_point, activation, alpha),
              ops::quantized_add(a, kA.scale, kA.zero_point, b, kB.scale, kB.zero_point, kY.scale,
                                 kY.zero_point, activation, alpha));
        }
        check_equal(cuda::quantized_mul(runner, b, kB.scale, kB.zero_point, a, kA.scale,
                                        kA.zero_point, kY.scale, kY.zero_point, activation),
                    ops::quantized_mul(b, kB.scale, kB.zero_point, a, kA.scale, kA.zero_point,
                                       kY.scale, kY.zero_point, activation));
      }
    }
  }
}

TEST_CASE("affine maps of codes on CUDA are the CPU's", "[cuda]") {
  at::manual_seed(2);
  const HostRunner runner{GENERATE(false, true)};
  for (const at::Tensor& q : operands()) {
    CAPTURE(text(q));
    const int64_t channels = q.dim() >= 2 ? q.size(1) : 1;
    const at::Tensor one = at::full({1}, 1.7, at::kDouble);
    const at::Tensor zero_dimensional = at::full({}, -0.3, at::kDouble);
    const at::Tensor each = at::randn({channels}, at::kDouble);
    const at::Tensor strided = at::randn({channels, 2}, at::kDouble).select(1, 0);
    for (const int64_t activation : {0, 1, 2}) {
      for (const auto& [factor, offset] : {std::pair(one, zero_dimensional), std::pair(each, one),
                                           std::pair(one, each), std::pair(strided, each)}) {
        check_equal(cuda::quantized_affine(runner, q, kA.scale, kA.zero_point, factor, offset,
                                           kY.scale, kY.zero_point, activation),
                    ops::quantized_affine(q, kA.scale, kA.zero_point, factor, offset, kY.scale,
                                          kY.zero_point, activation));
      }
      check_equal(cuda::quantized_affine_scalar(runner, q, kA.scale, kA.zero_point, -0.71, 0.4,
                                                kY.scale, kY.zero_point, activation),
                  ops::quantized_affine_scalar(q, kA.scale, kA.zero_point, -0.71, 0.4, kY.scale,
                                               kY.zero_point, activation));
    }
  }
}

TEST_CASE("lookups of codes on CUDA are the CPU's", "[cuda]") {
  at::manual_seed(3);
  const HostRunner runner{GENERATE(false, true)};
  const at::Tensor table = codes({256, 2}).select(1, 0);
  for (const at::Tensor& q : operands()) {
    CAPTURE(text(q));
    check_equal(cuda::quantized_lookup(runner, q, table), ops::quantized_lookup(q, table));
  }
}

TEST_CASE("concatenated codes on CUDA are the CPU's", "[cuda]") {
  at::manual_seed(4);
  const HostRunner runner{GENERATE(false, true)};
  const std::vector<std::vector<at::Tensor>> lists = {
      {codes({3, 5}), codes({3, 64}), codes({3, 0}), codes({3, 17})},
      {codes({2, 16, 4, 8}), codes({2, 3, 4, 8}), codes({2, 1, 4, 8})},
      {channels_last({2, 16, 5, 4}), channels_last({2, 32, 5, 4})},
      {channels_last({2, 3, 5, 4}), channels_last({2, 7, 5, 4}), codes({2, 1, 5, 4})},
      {codes({2, 6, 5, 4}), codes({2, 9, 4, 5}).transpose(2, 3)},
      {codes({40000}), misaligned({1000}, 3)},
      {codes({0, 3}), codes({0, 4})}};
  for (const auto& q : lists) {
    const int64_t dim = q[0].dim() == 1 ? 0 : 1;
    const std::vector<Grid> grids = {kY, kA, kB, kA};
    std::vector<at::Tensor> scales;
    std::vector<at::Tensor> zero_points;
    for (size_t i = 0; i < q.size(); ++i) {
      CAPTURE(text(q[i]));
      scales.push_back(grids[i].scale);
      zero_points.push_back(grids[i].zero_point);
    }
    check_equal(cuda::quantized_cat(runner, q, scales, zero_points, dim, kY.scale, kY.zero_point),
                ops::quantized_cat(q, scales, zero_points, dim, kY.scale, kY.zero_point));
  }
}

TEST_CASE("codes that already lie on the result's grid are copied on CUDA", "[cuda]") {
  const at::Tensor all = at::arange(256, at::kByte);
  for (const int zero_point : {0, 1, 128, 255}) {
    for (const double scale : {0x1p-23, 0.0371, 3e30}) {
      const Grid grid(scale, zero_point);
      CHECK(at::equal(cuda::quantized_cat(HostRunner(), {all}, {grid.scale}, {grid.zero_point}, 0,
                                          grid.scale, grid.zero_point),
                      all));
    }
  }
}

TEST_CASE("grids that no check has seen give defined codes on CUDA", "[cuda]") {
  const at::Tensor q = at::arange(256, at::kByte);
  for (const double scale : {0.0, -1.0, double(NAN), double(INFINITY)}) {
    for (const int zero_point : {-2147483647, -1, 256, 2147483647}) {
      const Grid bad(scale, zero_point);
      const at::Tensor out =
          cuda::quantized_add(HostRunner(), q, bad.scale, bad.zero_point, q, bad.scale,
                              bad.zero_point, bad.scale, bad.zero_point, 2, 1.0);
      CHECK(out.sizes() == q.sizes());
    }
  }
}
