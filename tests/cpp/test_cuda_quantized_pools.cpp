#include <ATen/ATen.h>

#include <sstream>
#include <vector>

#include "catch.h"
#include "host_runner.h"
#include "ops/cuda/quantized_pools.h"

// The integer poolings and means of CUDA, run on the host, against the CPU's kernels: equal to the
// bit, in the same memory format.
namespace ops = horizon::ops;
namespace cuda = horizon::ops::cuda;

namespace {

at::Tensor codes(at::IntArrayRef sizes) { return at::randint(0, 256, sizes, at::kByte); }

at::Tensor channels_last(at::IntArrayRef sizes) {
  return codes(sizes).contiguous(at::MemoryFormat::ChannelsLast);
}

/// Channels around a vector, planes, one and several blocks, layouts, and a misaligned address.
std::vector<at::Tensor> images() {
  std::vector<at::Tensor> out;
  for (const int64_t channels : {1, 2, 3, 4, 5, 8, 33}) {
    out.push_back(codes({2, channels, 9, 7}));
    out.push_back(channels_last({2, channels, 9, 7}));
  }
  out.push_back(codes({3, 9, 7}));
  out.push_back(codes({0, 3, 9, 7}));
  out.push_back(codes({5, 40, 12, 13}));
  out.push_back(channels_last({5, 40, 12, 13}));
  out.push_back(codes({2, 3, 20, 9}).slice(2, 1, 19, 2));
  out.push_back(codes({2 * 4 * 9 * 7 + 1}).slice(0, 1).view({2, 9, 7, 4}).permute({0, 3, 1, 2}));
  return out;
}

std::string text(const at::Tensor& x) {
  std::ostringstream stream;
  stream << "sizes " << x.sizes() << ", strides " << x.strides();
  return stream.str();
}

void check_equal(const at::Tensor& actual, const at::Tensor& expected) {
  REQUIRE(actual.sizes() == expected.sizes());
  // Strides of single pixels and of empty images say nothing.
  for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
    if (actual.dim() == 4 && actual.numel() > 0) {
      CHECK(actual.is_contiguous(format) == expected.is_contiguous(format));
    }
  }
  CHECK(at::equal(actual, expected));
}

const at::Tensor kScale = at::scalar_tensor(0.037F, at::kFloat);
const at::Tensor kZero = at::scalar_tensor(117, at::kInt);
const at::Tensor kOutScale = at::scalar_tensor(0.0291F, at::kFloat);
const at::Tensor kOutZero = at::scalar_tensor(131, at::kInt);

struct Window {
  std::vector<int64_t> kernel, stride, padding;
  bool ceil_mode;
};

const std::vector<Window> kWindows = {{{2}, {}, {0}, false},
                                      {{3}, {2}, {1}, false},
                                      {{3, 2}, {1, 3}, {1, 0}, true},
                                      {{5, 4}, {3}, {2, 2}, true},
                                      {{9, 7}, {}, {0}, false}};

}  // namespace

TEST_CASE("average pools of codes on CUDA are the CPU's", "[cuda]") {
  at::manual_seed(1);
  const HostRunner runner{GENERATE(false, true)};
  for (const at::Tensor& q : images()) {
    CAPTURE(text(q));
    for (const Window& w : kWindows) {
      for (const bool include : {false, true}) {
        for (const std::optional<int64_t> divisor :
             {std::optional<int64_t>(), std::optional<int64_t>(7)}) {
          CAPTURE(w.kernel, w.stride, w.padding, w.ceil_mode, include, divisor.value_or(0));
          check_equal(
              cuda::quantized_avg_pool2d(runner, q, kScale, kZero, w.kernel, w.stride, w.padding,
                                         w.ceil_mode, include, divisor, kOutScale, kOutZero),
              ops::quantized_avg_pool2d(q, kScale, kZero, w.kernel, w.stride, w.padding,
                                        w.ceil_mode, include, divisor, kOutScale, kOutZero));
        }
      }
    }
  }
}

TEST_CASE("adaptive pools of codes on CUDA are the CPU's", "[cuda]") {
  at::manual_seed(2);
  const HostRunner runner{GENERATE(false, true)};
  for (const at::Tensor& q : images()) {
    CAPTURE(text(q));
    for (const std::vector<int64_t>& size :
         std::vector<std::vector<int64_t>>{{1, 1}, {1, 3}, {4, 7}, {11, 5}, {0, 2}}) {
      CAPTURE(size);
      check_equal(
          cuda::quantized_adaptive_avg_pool2d(runner, q, kScale, kZero, size, kOutScale, kOutZero),
          ops::quantized_adaptive_avg_pool2d(q, kScale, kZero, size, kOutScale, kOutZero));
    }
  }
}

TEST_CASE("means of codes on CUDA are the CPU's", "[cuda]") {
  at::manual_seed(3);
  const HostRunner runner{GENERATE(false, true)};
  std::vector<at::Tensor> operands = images();
  // Rows of one lane to rows longer than what all lanes read at once, and many short rows.
  for (const int64_t count : {1, 15, 16, 17, 64, 255, 257, 4096, 4097, 70001}) {
    operands.push_back(codes({3, count}));
  }
  operands.push_back(codes({1000, 3}));
  operands.push_back(codes({}));
  for (const at::Tensor& q : operands) {
    CAPTURE(text(q));
    for (const bool keepdim : {false, true}) {
      std::vector<std::vector<int64_t>> dims = {{-1}};
      if (q.numel() > 0) dims.push_back({});
      if (q.dim() == 4) dims.insert(dims.end(), {{2, 3}, {3, 1}, {1, 2, 3}});
      if (q.dim() == 4 && q.numel() > 0) dims.push_back({0, 2});
      for (const std::vector<int64_t>& dim : dims) {
        CAPTURE(dim, keepdim);
        check_equal(
            cuda::quantized_mean(runner, q, kScale, kZero, dim, keepdim, kOutScale, kOutZero),
            ops::quantized_mean(q, kScale, kZero, dim, keepdim, kOutScale, kOutZero));
      }
    }
  }
}

TEST_CASE("max pools of codes on CUDA are the CPU's", "[cuda]") {
  at::manual_seed(4);
  const HostRunner runner{GENERATE(false, true)};
  for (const at::Tensor& q : images()) {
    CAPTURE(text(q));
    for (const Window& w : kWindows) {
      for (const std::vector<int64_t>& dilation :
           std::vector<std::vector<int64_t>>{{1}, {2, 1}, {1, 3}}) {
        const bool fits = (w.kernel[0] - 1) * dilation[0] < 9 + 2 * w.padding[0] &&
                          (w.kernel.back() - 1) * dilation.back() < 7 + 2 * w.padding.back();
        if (!fits) continue;
        CAPTURE(w.kernel, w.stride, w.padding, w.ceil_mode, dilation);
        check_equal(
            cuda::quantized_max_pool2d(runner, q, w.kernel, w.stride, w.padding, dilation,
                                       w.ceil_mode),
            ops::quantized_max_pool2d(q, w.kernel, w.stride, w.padding, dilation, w.ceil_mode));
      }
    }
  }
}
