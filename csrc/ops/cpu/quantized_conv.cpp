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

constexpr const char* kOp = "quantized_conv";

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
  Constants out{std::vector<float>(channels), std::vector<float>(channels)};
  for (const auto c : c10::irange(channels)) {
    out.multiplier[c] = quant::requantize_multiplier(x_scale, s_w[c], a[c], y_scale);
    out.offset[c] = quant::requantize_offset(b[c], y_scale);
    TORCH_CHECK_VALUE(std::isfinite(out.multiplier[c]), kOp, ": the multiplier of output channel ",
                      c, " must be finite in fp32, got ", out.multiplier[c], " (input scale ",
                      x_scale, ", weight scale ", s_w[c], ", factor ", a[c], ", output scale ",
                      y_scale, ")");
    TORCH_CHECK_VALUE(std::isfinite(out.offset[c]), kOp, ": the offset of output channel ", c,
                      " must be finite in fp32, got ", out.offset[c], " (offset ", b[c],
                      ", output scale ", y_scale, ")");
  }
  return out;
}

/// Weights as [out_channels, kernel, kernel, in_channels / groups], contiguous.
at::Tensor weight_rows(const QuantizedConvArguments& args) {
  const at::Tensor& w = args.weight;
  if (args.base == kBaseLinear) return w.contiguous().view({w.size(0), 1, 1, w.size(1)});
  if (args.base == kBaseConv) return w.permute({0, 2, 3, 1}).contiguous();
  const int64_t in = w.size(0) / args.groups;
  return w.reshape({args.groups, in, w.size(1), w.size(2), w.size(3)})
      .permute({0, 2, 3, 4, 1})
      .contiguous()
      .view({args.groups * w.size(1), w.size(2), w.size(3), in});
}

/// Problem and tensors that it points into.
struct Prepared {
  ConvProblem problem;
  at::Tensor input;
};

Prepared prepare(const QuantizedConvArguments& args, const QuantizedConvShape& shape,
                 int32_t zero_point) {
  Prepared out;
  ConvProblem& p = out.problem;
  p.base = args.base;
  p.groups = args.groups;
  p.weight = weight_rows(args);
  p.out_channels = p.weight.size(0);
  p.kernel = {p.weight.size(1), p.weight.size(2)};
  p.input_zero_point = zero_point;
  const auto sizes = concrete(shape.output);
  if (args.base == kBaseLinear) {
    out.input = args.input.contiguous();
    p.in_channels = p.weight.size(3);
    p.batch = out.input.numel() / p.in_channels;
    p.height = p.width = p.out_height = p.out_width = 1;
    p.stride = p.dilation = {1, 1};
    p.padding = {0, 0};
  } else {
    out.input = as_nhwc(args.input);
    p.batch = out.input.size(0);
    p.in_channels = out.input.size(1);
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
  const QuantizedConvArguments args{
      input,   input_scale, input_zero_point, weight,       weight_scale,      factor, offset,
      skip,    skip_scale,  skip_zero_point,  output_scale, output_zero_point, base,   stride,
      padding, dilation,    output_padding,   groups,       activation};
  const QuantizedConvShape shape = check_quantized_conv(args);
  const bool codes = output_scale.has_value();
  const CodeGrid x =
      read_grid(kOp, "input_scale", input_scale, "input_zero_point", input_zero_point);
  CodeGrid y{1.0, 0};
  if (codes) {
    y = read_grid(kOp, "output_scale", *output_scale, "output_zero_point", *output_zero_point);
  }
  const Constants constants = read_constants(args, x.scale, y.scale);
  ConvOutput output{};
  output.epilogue.multiplier = constants.multiplier.data();
  output.epilogue.offset = constants.offset.data();
  output.epilogue.stage = {shape.activation, codes ? quant::six_on_grid(y.scale) : 6.0F,
                           static_cast<float>(y.zero_point)};
  if (skip.has_value()) {
    const CodeGrid r =
        read_grid(kOp, "skip_scale", *skip_scale, "skip_zero_point", *skip_zero_point);
    output.epilogue.skip_zero_point = r.zero_point;
    output.epilogue.skip_ratio = check_constant(kOp, "the skip's scale over the output's",
                                                quant::scale_ratio(r.scale, y.scale));
  }

  const auto sizes = concrete(shape.output);
  const auto result_sizes = concrete(shape.result);
  const at::ScalarType type = codes ? at::kByte : at::kFloat;
  const bool image = base != kBaseLinear;
  if (c10::multiply_integers(result_sizes) == 0) {
    return at::empty(result_sizes, input.options().dtype(type), shape.format);
  }
  const Prepared prepared = prepare(args, shape, x.zero_point);
  if (result_sizes != sizes) {
    return broadcast_output(prepared.problem, output, *skip, sizes, result_sizes, shape.format,
                            type, image);
  }
  at::Tensor codes_of_skip;
  if (skip.has_value()) {
    codes_of_skip = materialized_skip(*skip, sizes, image);
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

}  // namespace
}  // namespace horizon::ops

TORCH_LIBRARY_IMPL(horizon, CPU, m) {
  m.impl("quantized_conv", TORCH_FN(horizon::ops::quantized_conv_cpu));
}
