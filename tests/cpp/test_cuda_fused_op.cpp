#include <ATen/ATen.h>

#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "catch.h"
#include "fused_cases.h"
#include "host_runner.h"
#include "ops/cuda/fused_backward.h"
#include "ops/cuda/fused_forward.h"
#include "ops/fused.h"
#include "ops/fused_shapes.h"
#include "ops/quantized_conv.h"

// The training op's CUDA passes, run on the host, against the op's CPU kernels.
namespace ops = horizon::ops;

namespace {

using namespace fused_cases;

std::vector<at::Tensor> list(const ops::FusedForward& r) {
  return {r.output, r.scale, r.zero_point, r.z, r.mask, r.moments, r.codes};
}

bool same_layout(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() &&
         (a.numel() == 0 || a.strides() == b.strides());
}

/// ‖a - b‖ is at most `relative` times ‖b‖.
bool near(const at::Tensor& a, const at::Tensor& b, double relative) {
  if (a.sizes() != b.sizes()) return false;
  const at::Tensor wide = b.to(at::kDouble);
  const double error = (a.to(at::kDouble) - wide).norm().item<double>();
  return error <= relative * wide.norm().item<double>() + 1e-30;
}

double rounding(at::ScalarType type) {
  return type == at::kDouble ? 1e-12 : type == at::kFloat ? 1e-6 : type == at::kHalf ? 2e-3 : 1e-2;
}

/// Elements that differ: a value next to a rounding boundary may fall on either side where the
/// statistics differ by rounding.
double share_of_differences(const at::Tensor& a, const at::Tensor& b) {
  if (a.numel() == 0) return 0;
  return at::ne(a, b).sum().item<double>() / static_cast<double>(a.numel());
}

/// z as the converted model computes it before its batch norm.
at::Tensor integer_z(const ops::FusedArgs& a, bool channels_last) {
  const at::Tensor x = ops::laid_out(a.input, channels_last);
  const at::Tensor codes = ops::quantize(x, *a.input_scale, *a.input_zero_point);
  const at::Tensor scales = ops::weight_scale(a.weight, a.base, a.groups);
  const at::Tensor weights = ops::quantize_weight(a.weight, scales, a.base, a.groups);
  const at::Tensor ones = at::ones({scales.numel()}, at::kDouble);
  const at::Tensor bias = a.bias.has_value() ? a.bias->to(at::kDouble) : at::zeros_like(ones);
  return ops::quantized_conv(codes, *a.input_scale, *a.input_zero_point, weights, scales, ones,
                             bias, {}, {}, {}, {}, {}, a.base, a.stride, a.padding, a.dilation,
                             a.output_padding, a.groups, 0);
}

/// Bytes of a mask that stand for elements: a short last row is padded to the length of the others.
int64_t used_mask_bytes(const at::Tensor& z, const at::Tensor& mask, int64_t channels) {
  const int64_t length = ops::tiled_length(channels);
  if (mask.numel() == 0 || length % 8 == 0 || !z.is_contiguous(at::MemoryFormat::ChannelsLast)) {
    return mask.numel();
  }
  const int64_t missing = length - 1 - (z.numel() + length - 1) % length;
  return mask.numel() - ((length + 7) / 8 - (length - missing + 7) / 8);
}

void check_forward(const Case& c) {
  INFO(text(c));
  const ops::FusedArgs args = arguments(c);
  const ops::FusedPlan plan = plan_of(args);
  ops::FusedArgs on_cpu = with_own_state(args), on_host = with_own_state(args);
  ops::FusedArgs turned = with_own_state(args);
  const auto expected = list(ops::call_fused_forward(on_cpu, plan));
  const auto got = list(ops::cuda::fused_forward(on_host, plan, HostRunner{false}));
  const auto reversed = list(ops::cuda::fused_forward(turned, plan, HostRunner{true}));
  for (size_t i = 0; i < got.size(); ++i) {
    INFO("result " << i);
    CHECK(same_layout(got[i], expected[i]));
    CHECK(at::equal(got[i], reversed[i]));
  }
  // CUDA computes z on codes wherever it can, the CPU only where that is faster.
  const bool on_codes = c.grid && c.type == at::kFloat;
  if (on_codes && plan.save_z) {
    CHECK(at::equal(got[3], integer_z(args, plan.channels_last)));
  } else {
    CHECK(at::equal(got[3], expected[3]));
  }
  CHECK(at::equal(got[6], expected[6]));  // codes
  CHECK(near(got[5], expected[5], rounding(c.type == at::kDouble ? at::kDouble : at::kFloat)));
  CHECK(near(got[1], expected[1], 1e-6));
  CHECK(at::equal(got[2], expected[2]));
  if (c.norm != Norm::kBatch && !on_codes) {
    CHECK(at::equal(got[0], expected[0]));
    const int64_t used = used_mask_bytes(got[3], got[4], c.channels);
    CHECK(at::equal(got[4].narrow(0, 0, used), expected[4].narrow(0, 0, used)));
  } else if (c.quantizer) {
    CHECK(share_of_differences(at::gt((got[0] - expected[0]).abs(), 1e-5), at::zeros({1})) < 0.01);
    CHECK(share_of_differences(got[4], expected[4]) < 0.02);
    CHECK(near(got[0], expected[0], 0.01));
  } else {
    CHECK(near(got[0], expected[0], rounding(c.type)));
  }
  const auto state_cpu = state(on_cpu), state_host = state(on_host);
  for (size_t i = 0; i < state_cpu.size(); ++i) {
    INFO("state " << i);
    if (!state_cpu[i]->has_value()) continue;
    CHECK(near(**state_host[i], **state_cpu[i], rounding(i < 2 ? c.type : at::kFloat)));
    CHECK((*state_host[i])->_version() == (*state_cpu[i])->_version());
  }
}

void check_backward(const Case& c) {
  INFO(text(c));
  const ops::FusedArgs args = arguments(c);
  const ops::FusedPlan plan = plan_of(args);
  const ops::FusedForward saved = ops::call_fused_forward(with_own_state(args), plan);
  ops::FusedBackwardArgs b = ops::fused_convolution(args);
  b.grad = at::randn_like(saved.output);
  if (plan.save_z) b.z = saved.z;
  if (plan.save_mask) b.mask = saved.mask;
  if (plan.save_moments) b.moments = saved.moments;
  if (plan.save_codes) b.input = saved.codes;
  b.input_scale = args.input_scale;
  b.input_zero_point = args.input_zero_point;
  b.bn_weight = args.bn_weight;
  if (args.skip.has_value()) {
    for (const int64_t size : args.skip->sizes()) b.skip_size.emplace_back(size);
  }
  b.batch_norm = args.batch_norm;
  b.batch_stats = args.batch_stats;
  b.quantize_weight = args.quantize_weight;
  b.channels_last = plan.channels_last;
  // All, without the convolution's, only the vectors, only the skip.
  for (const unsigned needs : {0x3fU, 0x3cU, 0x04U, 0x18U, 0x20U, 0x03U}) {
    INFO("needs " << needs);
    for (size_t i = 0; i < 6; ++i) b.needs[i] = ((needs >> i) & 1U) != 0;
    if (c.bare) b.needs[2] = b.needs[3] = b.needs[4] = false;
    if (!args.batch_norm) b.needs[3] = b.needs[4] = false;
    if (!args.skip.has_value()) b.needs[5] = false;
    if (!b.mask.has_value()) b.needs[5] = false;
    const auto expected = ops::call_fused_backward(b);
    const auto got = ops::cuda::fused_backward(b, HostRunner{false});
    const auto reversed = ops::cuda::fused_backward(b, HostRunner{true});
    for (size_t i = 0; i < got.size(); ++i) {
      INFO("gradient " << i);
      CHECK(same_layout(got[i], expected[i]));
      CHECK(at::equal(got[i], reversed[i]));
      if (i == 2 && args.batch_stats) {
        CHECK(at::equal(got[i], expected[i]));
      } else {
        CHECK(near(got[i], expected[i], rounding(c.type) * 10));
      }
    }
  }
}

}  // namespace

TEST_CASE("the training op's forward passes for CUDA give what the CPU gives", "[cuda]") {
  for (const Case& c : cases()) check_forward(c);
}

TEST_CASE("the training op's backward passes for CUDA give what the CPU gives", "[cuda]") {
  for (const Case& c : cases()) check_backward(c);
}

TEST_CASE("NaN in an input on a grid reaches the output and leaves the range alone", "[cuda]") {
  for (const Norm norm : {Norm::kNone, Norm::kFrozen, Norm::kBatch}) {
    Case c;
    c.norm = norm;
    c.grid = true;
    ops::FusedArgs args = arguments(c);
    args.input.select(0, 1).select(0, 2).fill_(std::nanf(""));
    const ops::FusedArgs before = with_own_state(args);
    const ops::FusedForward r = ops::cuda::fused_forward(args, plan_of(args), HostRunner{});
    CHECK(at::isnan(r.output).all().item<bool>());
    CHECK(at::equal(*args.quantizer.min_val, *before.quantizer.min_val));
    CHECK(at::equal(*args.quantizer.scale, *before.quantizer.scale));
    CHECK(at::equal(*args.quantizer.observed, *before.quantizer.observed));
    CHECK(at::equal(r.scale, *before.quantizer.scale));
  }
}

TEST_CASE("one value per channel is refused under batch statistics before anything moves",
          "[cuda]") {
  Case c;
  c.base = 2;
  ops::FusedArgs args = arguments(c);
  args.input = args.input.narrow(0, 0, 1);
  const ops::FusedArgs before = with_own_state(args);
  CHECK_THROWS_AS(ops::cuda::fused_forward(args, plan_of(args), HostRunner{}), c10::ValueError);
  CHECK(at::equal(*args.running_mean, *before.running_mean));
  CHECK(at::equal(*args.num_batches_tracked, *before.num_batches_tracked));
}
