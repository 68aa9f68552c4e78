#include "ops/quantized_conv_check.h"

#include <c10/util/irange.h>

#include <limits>

#include "ops/checks.h"
#include "ops/integer_checks.h"

namespace horizon::ops {
namespace {

constexpr const char* kOp = "quantized_conv";
constexpr int64_t kLargest = std::numeric_limits<int32_t>::max();

// |(q - z) * w| <= 255 * 128.
constexpr int64_t kMaxDepth = kLargest / (255 * 128);

template <size_t kCount>
std::array<int64_t, kCount> read_list(const char* name, at::IntArrayRef list, int64_t least) {
  HORIZON_CHECK_VALUE(list.size() == kCount, kOp, name, c10::str("of ", kCount, " entries"),
                      shape_text(list));
  std::array<int64_t, kCount> out{};
  for (const auto i : c10::irange(kCount)) {
    HORIZON_CHECK_VALUE(list[i] >= least && list[i] <= kLargest, kOp, name,
                        c10::str("at least ", least, " and at most ", kLargest), shape_text(list));
    out[i] = list[i];
  }
  return out;
}

std::array<int64_t, 4> read_padding(const QuantizedConvArguments& args) {
  if (args.base == kBaseConv && args.padding.size() == 4) {
    return read_list<4>("padding", args.padding, 0);
  }
  HORIZON_CHECK_VALUE(args.padding.size() == 2, kOp, "padding",
                      args.base == kBaseConv
                          ? "of 2 entries (height, width) or 4 (top, left, bottom, right)"
                          : "of 2 entries (height, width)",
                      shape_text(args.padding));
  const auto two = read_list<2>("padding", args.padding, 0);
  return {two[0], two[1], two[0], two[1]};
}

void read_options(const QuantizedConvArguments& args, QuantizedConvShape& shape) {
  shape.stride = read_list<2>("stride", args.stride, 1);
  shape.dilation = read_list<2>("dilation", args.dilation, 1);
  shape.padding = read_padding(args);
  shape.output_padding = {0, 0};
  if (args.base == kBaseConv) {
    for (const int64_t entry : args.output_padding) {
      HORIZON_CHECK_VALUE(entry == 0, kOp, "output_padding", "0 for conv2d",
                          shape_text(args.output_padding));
    }
    return;
  }
  shape.output_padding = read_list<2>("output_padding", args.output_padding, 0);
  for (const auto i : c10::irange(2)) {
    HORIZON_CHECK_VALUE(
        shape.output_padding[i] < shape.stride[i] || shape.output_padding[i] < shape.dilation[i],
        kOp, "output_padding", "smaller than stride or dilation", shape_text(args.output_padding));
  }
}

void check_depth(const c10::SymInt& depth) {
  HORIZON_CHECK_VALUE(
      depth <= kMaxDepth, kOp, "weight",
      c10::str("of at most ", kMaxDepth, " values per output (sums must fit int32)"), depth);
}

void check_linear(const QuantizedConvArguments& args, QuantizedConvShape& shape) {
  const at::Tensor& weight = args.weight;
  check_dim(kOp, "weight", weight, 2);
  HORIZON_CHECK_VALUE(weight.sym_size(0) >= 1 && weight.sym_size(1) >= 1, kOp, "weight",
                      "non-empty", shape_text(weight));
  HORIZON_CHECK_VALUE(args.groups == 1, kOp, "groups", "1 for linear", args.groups);
  const auto sizes = args.input.sym_sizes();
  HORIZON_CHECK_VALUE(!sizes.empty() && sizes.back() == weight.sym_size(1), kOp, "input",
                      c10::str("[..., ", weight.sym_size(1), "] as the weight says"),
                      shape_text(args.input));
  check_depth(weight.sym_size(1));
  shape.batched = true;
  shape.out_channels = weight.sym_size(0);
  shape.output.assign(sizes.begin(), sizes.end());
  shape.output.back() = shape.out_channels;
  shape.format = at::MemoryFormat::Contiguous;
}

c10::SymInt output_size(const QuantizedConvArguments& args, const QuantizedConvShape& shape,
                        const c10::SymInt& size, int64_t axis) {
  const c10::SymInt span = (args.weight.sym_size(2 + axis) - 1) * shape.dilation[axis] + 1;
  const int64_t padding = shape.padding[axis] + shape.padding[axis + 2];
  if (args.base == kBaseConv) {
    HORIZON_CHECK_VALUE(size + padding >= span, kOp, "input",
                        c10::str("at least as large as the kernel (", span, " in dimension ",
                                 axis - 2, ") with its padding"),
                        c10::str(size, " + ", padding));
    return (size + padding - span) / shape.stride[axis] + 1;
  }
  const c10::SymInt out =
      (size - 1) * shape.stride[axis] - padding + span + shape.output_padding[axis];
  HORIZON_CHECK_VALUE(out >= 1, kOp, "padding",
                      c10::str("small enough to leave an output in dimension ", axis - 2),
                      shape_text(args.padding));
  return out;
}

void check_convolution(const QuantizedConvArguments& args, QuantizedConvShape& shape) {
  const at::Tensor& weight = args.weight;
  const at::Tensor& input = args.input;
  const bool transposed = args.base == kBaseConvTranspose;
  read_options(args, shape);
  check_dim(kOp, "weight", weight, 4);
  for (const auto& size : weight.sym_sizes()) {
    HORIZON_CHECK_VALUE(size >= 1, kOp, "weight", "non-empty", shape_text(weight));
  }
  HORIZON_CHECK_VALUE(args.groups >= 1, kOp, "groups", "at least 1", args.groups);
  HORIZON_CHECK_VALUE(weight.sym_size(0) % args.groups == 0, kOp, "weight",
                      c10::str("divisible into ", args.groups, " groups in dimension 0"),
                      shape_text(weight));
  const c10::SymInt in_channels =
      transposed ? weight.sym_size(0) : weight.sym_size(1) * args.groups;
  shape.out_channels = transposed ? weight.sym_size(1) * args.groups : weight.sym_size(0);
  const c10::SymInt group_channels = transposed ? in_channels / args.groups : weight.sym_size(1);
  check_depth(group_channels * weight.sym_size(2) * weight.sym_size(3));

  HORIZON_CHECK_VALUE(input.dim() == 3 || input.dim() == 4, kOp, "input",
                      "[channels, height, width] or [batch, channels, height, width]",
                      shape_text(input));
  shape.batched = input.dim() == 4;
  const int64_t first = shape.batched ? 1 : 0;
  HORIZON_CHECK_VALUE(input.sym_size(first) == in_channels, kOp, "input",
                      c10::str("of ", in_channels, " channels"), shape_text(input));
  HORIZON_CHECK_VALUE(input.sym_size(first + 1) >= 1 && input.sym_size(first + 2) >= 1, kOp,
                      "input", "non-empty but for the batch", shape_text(input));
  if (shape.batched) shape.output.push_back(input.sym_size(0));
  shape.output.push_back(shape.out_channels);
  for (const auto axis : c10::irange(2)) {
    shape.output.push_back(output_size(args, shape, input.sym_size(first + 1 + axis), axis));
  }
  shape.format = shape.batched ? result_format(input) : at::MemoryFormat::Contiguous;
}

void check_operands(const QuantizedConvArguments& args) {
  check_codes(kOp, args.input, "input", "input", args.input, "input_scale", args.input_scale,
              "input_zero_point", args.input_zero_point);
  check_dtype(kOp, "weight", args.weight, at::kChar);
  check_device(kOp, "weight", args.weight, args.input, "input");
  check_dtype(kOp, "weight_scale", args.weight_scale, at::kFloat);
  check_dtype(kOp, "factor", args.factor, at::kDouble);
  check_dtype(kOp, "offset", args.offset, at::kDouble);
  if (args.skip.has_value()) {
    HORIZON_CHECK_VALUE(args.skip_scale.has_value() && args.skip_zero_point.has_value(), kOp,
                        "skip", "given with 'skip_scale' and 'skip_zero_point'", "None");
    check_codes(kOp, args.input, "input", "skip", *args.skip, "skip_scale", *args.skip_scale,
                "skip_zero_point", *args.skip_zero_point);
  }
  HORIZON_CHECK_VALUE(args.output_scale.has_value() == args.output_zero_point.has_value(), kOp,
                      "output_scale", "given together with 'output_zero_point'",
                      args.output_scale.has_value() ? "the scale alone" : "the zero point alone");
  if (args.output_scale.has_value()) {
    check_grid(kOp, args.input, "input", "output_scale", *args.output_scale, "output_zero_point",
               *args.output_zero_point);
  }
}

}  // namespace

QuantizedConvShape check_quantized_conv(const QuantizedConvArguments& args) {
  check_operands(args);
  HORIZON_CHECK_VALUE(args.base >= 0 && args.base < kBaseCount, kOp, "base",
                      "0 (conv2d), 1 (conv_transpose2d) or 2 (linear)", args.base);
  QuantizedConvShape shape;
  shape.activation = check_activation(kOp, args.activation);
  if (args.base == kBaseLinear) {
    check_linear(args, shape);
  } else {
    check_convolution(args, shape);
  }
  const std::pair<const char*, const at::Tensor*> channel_vectors[] = {
      {"weight_scale", &args.weight_scale}, {"factor", &args.factor}, {"offset", &args.offset}};
  for (const auto& [name, vector] : channel_vectors) {
    check_shape(kOp, name, *vector, {shape.out_channels});
    check_device(kOp, name, *vector, args.input, "input");
  }
  shape.result = shape.output;
  if (args.skip.has_value()) {
    shape.result = broadcast_sizes(kOp, "the convolution's output", shape.output, "skip",
                                   args.skip->sym_sizes());
  }
  if (shape.result.size() != 4) shape.format = at::MemoryFormat::Contiguous;
  return shape;
}

}  // namespace horizon::ops
