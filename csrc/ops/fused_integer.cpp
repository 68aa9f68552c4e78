#include "ops/fused_integer.h"

#include "ops/codes_io.h"
#include "ops/fold_batch_norm.h"
#include "ops/fused_convolution.h"
#include "ops/fused_shapes.h"
#include "ops/quantized_conv.h"
#include "ops/weights.h"

namespace horizon::ops {

at::Tensor fused_integer(const FusedArgs& args, bool channels_last,
                         const std::optional<at::Tensor>& scale,
                         const std::optional<at::Tensor>& zero_point) {
  using Maybe = std::optional<at::Tensor>;
  const int64_t channels = fused_channels(args.weight, args.base, args.groups);
  const at::Tensor codes = quantize(laid_out(batched(args.input, args.base), channels_last),
                                    *args.input_scale, *args.input_zero_point);
  const at::Tensor weight_scales = weight_scale(args.weight, args.base, args.groups);
  const at::Tensor weights = quantize_weight(args.weight, weight_scales, args.base, args.groups);
  const bool normalized = args.batch_norm;
  const auto [factor, offset] =
      fold_batch_norm(args.bias, normalized ? args.bn_weight : Maybe(),
                      normalized ? args.bn_bias : Maybe(), normalized ? args.running_mean : Maybe(),
                      normalized ? args.running_var : Maybe(), args.eps, channels);
  Maybe skip_codes;
  if (args.skip.has_value()) {
    skip_codes = quantize(*args.skip, *args.skip_scale, *args.skip_zero_point);
  }
  const at::Tensor y = quantized_conv(
      codes, *args.input_scale, *args.input_zero_point, weights, weight_scales, factor, offset,
      skip_codes, args.skip_scale, args.skip_zero_point, scale, zero_point, args.base, args.stride,
      args.padding, args.dilation, args.output_padding, args.groups, args.activation);
  const at::ScalarType type = args.input.scalar_type();
  const at::Tensor output =
      scale.has_value() ? dequantize(y, *scale, *zero_point, type) : y.to(type);
  const bool as_z = fused_output(fused_z_sizes(fused_convolution(args)), args.skip).as_z;
  return laid_out(output, channels_last && as_z);
}

}  // namespace horizon::ops
