// Max pooling of codes: the kernels of every instruction set that this machine has, and the entry.
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "catch.h"
#include "ops/cpu/kernels/max_pool.h"
#include "ops/quantized_max_pool.h"

namespace horizon {
namespace {

struct Named {
  std::string name;
  const cpu::MaxPoolKernels* table;
};

std::vector<Named> tables() {
  std::vector<Named> out{{"generic", &cpu::generic::max_pool_kernels()}};
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 &&
                    __builtin_cpu_supports("f16c") != 0;
  if (avx2) out.push_back({"avx2", &cpu::avx2::max_pool_kernels()});
  if (avx2 && __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
      __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512dq") != 0) {
    out.push_back({"avx512", &cpu::avx512::max_pool_kernels()});
  }
#endif
  return out;
}

std::vector<uint8_t> random_codes(int64_t count) {
  static std::mt19937 engine(1);
  std::vector<uint8_t> out(count);
  for (auto& q : out) q = static_cast<uint8_t>(engine() % 256);
  return out;
}

struct Window {
  int64_t kernel, stride, padding, dilation;
};

cpu::MaxPoolAxis axis(int64_t size, const Window& w) {
  const int64_t room = size + 2 * w.padding - (w.kernel - 1) * w.dilation - 1;
  return {size, room / w.stride + 1, w.kernel, w.stride, w.padding, w.dilation};
}

/// The largest code of one window and channel, tap by tap; 0 without any tap inside.
uint8_t expected(const std::vector<uint8_t>& plane, const cpu::MaxPoolAxis& y_axis,
                 const cpu::MaxPoolAxis& x_axis, int64_t channels, int64_t row, int64_t column,
                 int64_t channel) {
  uint8_t most = 0;
  for (int64_t i = 0; i < y_axis.kernel; ++i) {
    for (int64_t j = 0; j < x_axis.kernel; ++j) {
      const int64_t y = row * y_axis.stride - y_axis.padding + i * y_axis.dilation;
      const int64_t x = column * x_axis.stride - x_axis.padding + j * x_axis.dilation;
      if (y < 0 || y >= y_axis.size || x < 0 || x >= x_axis.size) continue;
      most = std::max(most, plane[(y * x_axis.size + x) * channels + channel]);
    }
  }
  return most;
}

TEST_CASE("a row of maxima is exact on every instruction set and touches no more",
          "[integer][max_pool]") {
  const int64_t channels = GENERATE(1, 3, 15, 16, 17, 64, 65, 127);
  const int64_t width = GENERATE(9, 40, 200);
  const Window window =
      GENERATE(Window{1, 1, 0, 1}, Window{2, 2, 0, 1}, Window{3, 1, 1, 1}, Window{3, 2, 1, 1},
               Window{2, 5, 1, 1}, Window{3, 1, 1, 3}, Window{2, 1, 1, 9}, Window{5, 3, 2, 2});
  const Window vertical{std::min<int64_t>(window.kernel, 3), 2, window.padding / 2, 1};
  const cpu::MaxPoolAxis y_axis = axis(5, vertical);
  const cpu::MaxPoolAxis x_axis = axis(width, window);
  REQUIRE(x_axis.count >= 1);
  const auto plane = random_codes(y_axis.size * width * channels);
  for (const auto& [name, table] : tables()) {
    INFO(name);
    std::vector<uint8_t> scratch(2 * width * channels + 1, 77);
    std::vector<uint8_t> out(x_axis.count * channels + 1, 77);
    int64_t wrong = 0;
    for (int64_t row = 0; row < y_axis.count; ++row) {
      table->row(plane.data(), y_axis, x_axis, channels, row, scratch.data(), out.data());
      for (int64_t i = 0; i < x_axis.count * channels; ++i) {
        wrong +=
            out[i] != expected(plane, y_axis, x_axis, channels, row, i / channels, i % channels);
      }
    }
    CHECK(wrong == 0);
    CHECK(out.back() == 77);
    CHECK(scratch.back() == 77);
  }
}

TEST_CASE("maxima of codes in numbers", "[integer][max_pool]") {
  //  0  1  2  3
  //  4  5  6  7   The largest of a 2x2 window is its last entry.
  const at::Tensor q = at::arange(8, at::kByte).view({1, 1, 2, 4});
  CHECK(at::equal(ops::quantized_max_pool2d(q, {2}, {}, {0}, {1}, false),
                  at::tensor({5, 7}, at::kByte).view({1, 1, 1, 2})));
  CHECK(at::equal(ops::quantized_max_pool2d(q, {1, 2}, {1}, {0, 1}, {1, 2}, false).flatten(),
                  at::tensor({1, 2, 3, 2, 5, 6, 7, 6}, at::kByte)));
}

TEST_CASE("errors of the max pooling's entry are those of Python", "[integer][max_pool]") {
  std::string message;
  try {
    ops::quantized_max_pool2d(at::zeros({1, 4, 4}, at::kByte), {3}, {}, {2}, {1}, false);
  } catch (const c10::ValueError& error) {
    message = error.what_without_backtrace();
  }
  CHECK(message == "quantized_max_pool2d: 'padding' must be at most half the kernel, got [2]");
}

}  // namespace
}  // namespace horizon
