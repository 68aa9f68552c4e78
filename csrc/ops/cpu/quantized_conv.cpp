#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/irange.h>
#include <torch/library.h>

#include <cmath>

#include "ops/checks.h"
#include "ops/cpu/nhwc.h"
#include "ops/cpu/quantized_conv_run.h"
#include "ops/integer_checks.h"
#include "ops/quantized_conv_check.h"

namespace horizon::ops {
namespace {

/// Per-channel constants of the epilogue.
struct Constants {
  std::vector<float> multiplier, offset;
};

Constants read_constants(const QuantizedConvArguments& args, double x_scale, double y_scale) {
  const at::Tensor weight_scale = args.weight_scale.contiguous();
  const at::Tensor factor = args.factor.contiguous();
  const at::Tensor offset = args.offset.contiguous();
  const auto* s_w = weight_scale.const_data_ptr<float>();
  const auto* a = factor.const_data_ptr<double>();
  const auto* b = offset.const_data_ptr<double>();
  const int64_t channels = factor.numel();
  // Kernels read whole vectors.
  const auto padded = static_cast<size_t>(channels + 2 * kPackedLanes);
  Constants out{std::vector<float>(padded), std::vector<float>(padded)};
  const bool finite = cpu::codes_kernels().conv_constants(x_scale, s_w, a, b, y_scale, channels,
                                                          out.multiplier.data(), out.offset.data());
  for (int64_t c = 0; !finite && c < channels; ++c) {
    TORCH_CHECK_VALUE(std::isfinite(out.multiplier[c]), args.op(),
                      ": the multiplier of output channel ", c, " must be finite in fp32, got ",
                      out.multiplier[c], " (input scale ", x_scale, ", weight scale ", s_w[c],
                      ", factor ", a[c], ", output scale ", y_scale, ")");
    TORCH_CHECK_VALUE(std::isfinite(out.offset[c]), args.op(), ": the offset of output channel ", c,
                      " must be finite in fp32, got ", out.offset[c], " (offset ", b[c],
                      ", output scale ", y_scale, ")");
  }
  return out;
}

/// Problem and tensors that it points into.
struct Prepared {
  ConvProblem problem;
  at::Tensor input, packed;
};

Prepared prepare(const QuantizedConvArguments& args, const QuantizedConvShape& shape,
                 int32_t zero_point) {
  Prepared out;
  ConvProblem& p = out.problem;
  p.weight = weight_shape(args.weight_size.value_or(args.weight.sizes()), args.base, args.stride,
                          args.dilation, args.groups);
  p.layout = weight_layout(p.weight);
  out.packed = args.weight_size.has_value() ? args.weight.contiguous()
                                            : packed_codes(args.weight, p.weight, p.layout);
  p.packed = out.packed.const_data_ptr<int8_t>();
  p.input_zero_point = zero_point;
  p.in_channels = p.weight.group_in * p.weight.groups;
  const auto sizes = concrete(shape.output);
  if (args.base == kBaseLinear) {
    out.input = args.input.contiguous();
    p.batch = out.input.numel() / p.in_channels;
    p.height = p.width = p.out_height = p.out_width = 1;
    p.stride = p.dilation = {1, 1};
    p.padding = {0, 0};
  } else {
    out.input = as_nhwc(args.input);
    p.batch = out.input.size(0);
    p.height = out.input.size(2);
    p.width = out.input.size(3);
    p.out_height = sizes[sizes.size() - 2];
    p.out_width = sizes[sizes.size() - 1];
    p.stride = shape.stride;
    p.dilation = shape.dilation;
    p.padding = {shape.padding[0], shape.padding[1]};
  }
  p.input = out.input.const_data_ptr<uint8_t>();
  return out;
}

/// The skip's codes with the shape and memory order that the kernels write.
at::Tensor materialized_skip(const at::Tensor& skip, at::IntArrayRef sizes, bool image) {
  const at::Tensor wide = skip.expand(sizes);
  return image ? as_nhwc(wide) : wide.contiguous();
}

/// A skip that is larger than the convolution's output: values first, then the skip on each.
at::Tensor broadcast_output(const ConvProblem& problem, ConvOutput output, const at::Tensor& skip,
                            at::IntArrayRef sizes, at::IntArrayRef result_sizes,
                            at::MemoryFormat format, at::ScalarType type, bool image) {
  const cpu::ConvEpilogue epilogue = output.epilogue;
  output.epilogue.stage.activation = quant::Activation::kNone;
  const NhwcResult values(sizes, at::kFloat, at::MemoryFormat::Contiguous, image);
  output.values = static_cast<float*>(values.data());
  run_quantized_conv(problem, output);
  const at::Tensor v = values.finish().expand(result_sizes).contiguous(format);
  const at::Tensor r = skip.expand(result_sizes).contiguous(format);
  const at::Tensor result = at::empty(result_sizes, at::TensorOptions(type), format);
  cpu::ConvEpilogue last = epilogue;
  last.skip = r.const_data_ptr<uint8_t>();
  const auto* in = v.const_data_ptr<float>();
  const auto& kernels = cpu::codes_kernels();
  if (type == at::kByte) {
    kernels.skip_codes(last, in, v.numel(), result.mutable_data_ptr<uint8_t>());
  } else {
    kernels.skip_values(last, in, v.numel(), result.mutable_data_ptr<float>());
  }
  return result;
}

at::Tensor run(const QuantizedConvArguments& args) {
  const QuantizedConvShape shape = check_quantized_conv(args);
  const char* op = args.op();
  const bool codes = args.output_scale.has_value();
  const CodeGrid x =
      read_grid(op, "input_scale", args.input_scale, "input_zero_point", args.input_zero_point);
  CodeGrid y{1.0, 0};
  if (codes) {
    y = read_grid(op, "output_scale", *args.output_scale, "output_zero_point",
                  *args.output_zero_point);
  }
  const Constants constants = read_constants(args, x.scale, y.scale);
  ConvOutput output{};
  output.epilogue.multiplier = constants.multiplier.data();
  output.epilogue.offset = constants.offset.data();
  output.epilogue.stage = {shape.activation, codes ? quant::six_on_grid(y.scale) : 6.0F,
                           static_cast<float>(y.zero_point)};
  if (args.skip.has_value()) {
    const CodeGrid r =
        read_grid(op, "skip_scale", *args.skip_scale, "skip_zero_point", *args.skip_zero_point);
    output.epilogue.skip_zero_point = r.zero_point;
    output.epilogue.skip_ratio = check_constant(op, "the skip's scale over the output's",
                                                quant::scale_ratio(r.scale, y.scale));
  }

  const auto sizes = concrete(shape.output);
  const auto result_sizes = concrete(shape.result);
  const at::ScalarType type = codes ? at::kByte : at::kFloat;
  const bool image = args.base != kBaseLinear;
  if (c10::multiply_integers(result_sizes) == 0) {
    return at::empty(result_sizes, args.input.options().dtype(type), shape.format);
  }
  const Prepared prepared = prepare(args, shape, x.zero_point);
  if (result_sizes != sizes) {
    return broadcast_output(prepared.problem, output, *args.skip, sizes, result_sizes, shape.format,
                            type, image);
  }
  at::Tensor codes_of_skip;
  if (args.skip.has_value()) {
    codes_of_skip = materialized_skip(*args.skip, sizes, image);
    output.epilogue.skip = codes_of_skip.const_data_ptr<uint8_t>();
  }
  const NhwcResult destination(sizes, type, shape.format, image);
  if (codes) {
    output.codes = static_cast<uint8_t*>(destination.data());
  } else {
    output.values = static_cast<float*>(destination.data());
  }
  run_quantized_conv(prepared.problem, output);
  return destination.finish();
}

at::Tensor quantized_conv_cpu(const at::Tensor& input, const at::Tensor& input_scale,
                              const at::Tensor& input_zero_point, const at::Tensor& weight,
                              const at::Tensor& weight_scale, const at::Tensor& factor,
                              const at::Tensor& offset, const std::optional<at::Tensor>& skip,
                              const std::optional<at::Tensor>& skip_scale,
                              const std::optional<at::Tensor>& skip_zero_point,
                              const std::optional<at::Tensor>& output_scale,
                              const std::optional<at::Tensor>& output_zero_point, int64_t base,
                              at::IntArrayRef stride, at::IntArrayRef padding,
                              at::IntArrayRef dilation, at::IntArrayRef output_padding,
                              int64_t groups, int64_t activation) {
  return run({input,
              input_scale,
              input_zero_point,
              weight,
              std::nullopt,
              weight_scale,
              factor,
              offset,
              skip,
              skip_scale,
              skip_zero_point,
              output_scale,
              output_zero_point,
              base,
              stride,
              padding,
              dilation,
              output_padding,
              groups,
              activation});
}

at::Tensor quantized_conv_packed_cpu(
    const at::Tensor& input, const at::Tensor& input_scale, const at::Tensor& input_zero_point,
    const at::Tensor& packed, at::IntArrayRef weight_size, const at::Tensor& weight_scale,
    const at::Tensor& factor, const at::Tensor& offset, const std::optional<at::Tensor>& skip,
    const std::optional<at::Tensor>& skip_scale, const std::optional<at::Tensor>& skip_zero_point,
    const std::optional<at::Tensor>& output_scale,
    const std::optional<at::Tensor>& output_zero_point, int64_t base, at::IntArrayRef stride,
    at::IntArrayRef padding, at::IntArrayRef dilation, at::IntArrayRef output_padding,
    int64_t groups, int64_t activation) {
  return run({input,
              input_scale,
              input_zero_point,
              packed,
              weight_size,
              weight_scale,
              factor,
              offset,
              skip,
              skip_scale,
              skip_zero_point,
              output_scale,
              output_zero_point,
              base,
              stride,
              padding,
              dilation,
              output_padding,
              groups,
              activation});
}

at::Tensor pack_weight_cpu(const at::Tensor& weight, int64_t base, at::IntArrayRef stride,
                           at::IntArrayRef dilation, int64_t groups) {
  check_pack_weight(weight, base, stride, dilation, groups);
  const auto shape = weight_shape(weight.sizes(), base, stride, dilation, groups);
  return packed_codes(weight, shape, weight_layout(shape));
}

at::Tensor unpack_weight_cpu(const at::Tensor& packed, at::IntArrayRef weight_size, int64_t base,
                             at::IntArrayRef stride, at::IntArrayRef dilation, int64_t groups) {
  const auto shape =
      check_packed_weight("unpack_weight", packed, weight_size, base, stride, dilation, groups);
  return unpacked_codes(packed, weight_size, shape, weight_layout(shape));
}

}  // namespace
}  // namespace horizon::ops

TORCH_LIBRARY_IMPL(horizon, CPU, m) {
  m.impl("quantized_conv", TORCH_FN(horizon::ops::quantized_conv_cpu));
  m.impl("quantized_conv_packed", TORCH_FN(horizon::ops::quantized_conv_packed_cpu));
  m.impl("pack_weight", TORCH_FN(horizon::ops::pack_weight_cpu));
  m.impl("unpack_weight", TORCH_FN(horizon::ops::unpack_weight_cpu));
}
