#include "ops/cpu/fused_codes.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones.h>

#include <atomic>
#include <cmath>
#include <limits>

#include "ops/checks.h"
#include "ops/cpu/dense.h"
#include "ops/cpu/fused_vectors.h"
#include "ops/cpu/kernels/fake_quantize.h"
#include "ops/fused_convolution.h"
#include "ops/fused_shapes.h"
#include "ops/quantized_conv.h"
#include "ops/weights.h"
#include "quant/grid.h"

namespace horizon::ops {
namespace {

/// Products of one sum; more could overflow int32.
constexpr int64_t kMaxDepth = std::numeric_limits<int32_t>::max() / (255 * 128);

/// The largest finite scale of z per channel is that of the largest weight.
bool scales_in_float(const at::Tensor& input_scale, const at::Tensor& weight_scales) {
  const double input = cpu::read_vector(input_scale.reshape({1}), 1, 1)[0];
  for (const double s : cpu::read_vector(weight_scales, weight_scales.numel(), 1)) {
    if (!std::isfinite(static_cast<float>(input * s))) return false;
  }
  return true;
}

cpu::Grid input_grid(const FusedArgs& args) {
  const float scale = read_scale("fused", "input_scale", *args.input_scale);
  const int32_t zero_point = read_zero_point("fused", "input_zero_point", *args.input_zero_point,
                                             quant::kStoredMin, quant::kStoredMax);
  return {scale, 1.0F / scale, zero_point, quant::kStoredMin, quant::kStoredMax};
}

}  // namespace

void check_input_grid(const FusedArgs& args) {
  if (args.input_scale.has_value()) input_grid(args);
}

InputCodes encode_input(const FusedArgs& args, bool channels_last) {
  const cpu::Grid grid = input_grid(args);
  const at::Tensor x = laid_out(args.input, channels_last);
  InputCodes result{at::empty_like(x, x.options().dtype(at::kByte)), true};
  const void* from = x.const_data_ptr();
  auto* to = result.codes.mutable_data_ptr<uint8_t>();
  const auto type = cpu::float_type(x.scalar_type());
  std::atomic<bool> complete = true;
  cpu::parallel_blocks(x.numel(), [&](int64_t begin, int64_t end) {
    if (!cpu::fake_quantize_kernels().quantize(type, from, to, begin, end, grid)) complete = false;
  });
  result.complete = complete;
  return result;
}

bool computes_on_codes(const FusedArgs& args) {
  // Below, packing the weights and gathering the codes cost what the products save.
  constexpr int64_t kFewestChannels = 16;
  constexpr int64_t kFewestRows = 64;
  if (!cpu::has_vnni() || !args.input_scale.has_value() || !args.quantize_weight) return false;
  if (args.input.scalar_type() != at::kFloat || args.groups != 1) return false;
  const bool transposed = static_cast<Base>(args.base) == Base::kConvTranspose2d;
  const int64_t inputs = args.weight.size(transposed ? 0 : 1);
  const int64_t channels = fused_channels(args.weight, args.base, args.groups);
  if (inputs < kFewestChannels || channels == 0) return false;
  if (args.weight.numel() / channels > kMaxDepth) return false;
  c10::SymInt total = 1;
  for (const auto& size : fused_z_sizes(fused_convolution(args))) total *= size;
  return total.expect_int() / channels >= kFewestRows;
}

at::Tensor convolve_codes(const FusedArgs& args, const at::Tensor& codes, bool channels_last) {
  const at::Tensor weight_scales = weight_scale(args.weight, args.base, args.groups);
  if (!scales_in_float(*args.input_scale, weight_scales)) return {};
  const int64_t channels = weight_scales.numel();
  const std::vector<double> bias = cpu::read_vector(args.bias, channels, 0);
  for (const double b : bias) {
    if (!std::isfinite(b)) return {};
  }
  const at::Tensor weights = quantize_weight(args.weight, weight_scales, args.base, args.groups);
  const auto constant = at::device(at::kCPU).dtype(at::kDouble);
  const at::Tensor z = quantized_conv(
      batched(codes, args.base), *args.input_scale, *args.input_zero_point, weights, weight_scales,
      at::ones({channels}, constant), cpu::make_vector(bias, at::kDouble), {}, {}, {}, {}, {},
      args.base, args.stride, args.padding, args.dilation, args.output_padding, args.groups,
      static_cast<int64_t>(quant::Activation::kNone));
  return laid_out(z, channels_last);
}

}  // namespace horizon::ops
