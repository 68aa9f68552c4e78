#include "ops/quantized_conv_check.h"

#include <c10/util/irange.h>

#include <limits>

#include "ops/checks.h"
#include "ops/integer_checks.h"

namespace horizon::ops {
namespace {

constexpr int64_t kLargest = std::numeric_limits<int32_t>::max();

template <size_t kCount>
std::array<int64_t, kCount> read_list(const char* op, const char* name, at::IntArrayRef list,
                                      int64_t least) {
  HORIZON_CHECK_VALUE(list.size() == kCount, op, name, c10::str("of ", kCount, " entries"),
                      shape_text(list));
  std::array<int64_t, kCount> out{};
  for (const auto i : c10::irange(kCount)) {
    HORIZON_CHECK_VALUE(list[i] >= least && list[i] <= kLargest, op, name,
                        c10::str("at least ", least, " and at most ", kLargest), shape_text(list));
    out[i] = list[i];
  }
  return out;
}

std::array<int64_t, 4> read_padding(const QuantizedConvArguments& args) {
  const char* op = args.op();
  if (args.base == kBaseConv && args.padding.size() == 4) {
    return read_list<4>(args.op(), "padding", args.padding, 0);
  }
  HORIZON_CHECK_VALUE(args.padding.size() == 2, op, "padding",
                      args.base == kBaseConv
                          ? "of 2 entries (height, width) or 4 (top, left, bottom, right)"
                          : "of 2 entries (height, width)",
                      shape_text(args.padding));
  const auto two = read_list<2>(args.op(), "padding", args.padding, 0);
  return {two[0], two[1], two[0], two[1]};
}

void read_options(const QuantizedConvArguments& args, QuantizedConvShape& shape) {
  const char* op = args.op();
  shape.stride = read_list<2>(args.op(), "stride", args.stride, 1);
  shape.dilation = read_list<2>(args.op(), "dilation", args.dilation, 1);
  shape.padding = read_padding(args);
  shape.output_padding = {0, 0};
  if (args.base == kBaseConv) {
    for (const int64_t entry : args.output_padding) {
      HORIZON_CHECK_VALUE(entry == 0, op, "output_padding", "0 for conv2d",
                          shape_text(args.output_padding));
    }
    return;
  }
  shape.output_padding = read_list<2>(args.op(), "output_padding", args.output_padding, 0);
  for (const auto i : c10::irange(2)) {
    HORIZON_CHECK_VALUE(
        shape.output_padding[i] < shape.stride[i] || shape.output_padding[i] < shape.dilation[i],
        op, "output_padding", "smaller than stride or dilation", shape_text(args.output_padding));
  }
}

void check_base(const char* op, int64_t base) {
  HORIZON_CHECK_VALUE(base >= 0 && base < kBaseCount, op, "base",
                      "0 (conv2d), 1 (conv_transpose2d) or 2 (linear)", base);
}

void check_linear(const QuantizedConvArguments& args, c10::SymIntArrayRef weight,
                  QuantizedConvShape& shape) {
  const auto sizes = args.input.sym_sizes();
  HORIZON_CHECK_VALUE(!sizes.empty() && sizes.back() == weight[1], args.op(), "input",
                      c10::str("[..., ", weight[1], "] as the weight says"),
                      shape_text(args.input));
  shape.batched = true;
  shape.out_channels = weight[0];
  shape.output.assign(sizes.begin(), sizes.end());
  shape.output.back() = shape.out_channels;
  shape.format = at::MemoryFormat::Contiguous;
}

c10::SymInt output_size(const QuantizedConvArguments& args, c10::SymIntArrayRef weight,
                        const QuantizedConvShape& shape, const c10::SymInt& size, int64_t axis) {
  const char* op = args.op();
  const c10::SymInt span = (weight[2 + axis] - 1) * shape.dilation[axis] + 1;
  const int64_t padding = shape.padding[axis] + shape.padding[axis + 2];
  if (args.base == kBaseConv) {
    HORIZON_CHECK_VALUE(size + padding >= span, op, "input",
                        c10::str("at least as large as the kernel (", span, " in dimension ",
                                 axis - 2, ") with its padding"),
                        c10::str(size, " + ", padding));
    return (size + padding - span) / shape.stride[axis] + 1;
  }
  const c10::SymInt out =
      (size - 1) * shape.stride[axis] - padding + span + shape.output_padding[axis];
  HORIZON_CHECK_VALUE(out >= 1, op, "padding",
                      c10::str("small enough to leave an output in dimension ", axis - 2),
                      shape_text(args.padding));
  return out;
}

void check_convolution(const QuantizedConvArguments& args, c10::SymIntArrayRef weight,
                       QuantizedConvShape& shape) {
  const char* op = args.op();
  const at::Tensor& input = args.input;
  const bool transposed = args.base == kBaseConvTranspose;
  const c10::SymInt in_channels = transposed ? weight[0] : weight[1] * args.groups;
  shape.out_channels = transposed ? weight[1] * args.groups : weight[0];
  HORIZON_CHECK_VALUE(input.dim() == 3 || input.dim() == 4, op, "input",
                      "[channels, height, width] or [batch, channels, height, width]",
                      shape_text(input));
  shape.batched = input.dim() == 4;
  const int64_t first = shape.batched ? 1 : 0;
  HORIZON_CHECK_VALUE(input.sym_size(first) == in_channels, op, "input",
                      c10::str("of ", in_channels, " channels"), shape_text(input));
  HORIZON_CHECK_VALUE(input.sym_size(first + 1) >= 1 && input.sym_size(first + 2) >= 1, op, "input",
                      "non-empty but for the batch", shape_text(input));
  if (shape.batched) shape.output.push_back(input.sym_size(0));
  shape.output.push_back(shape.out_channels);
  for (const auto axis : c10::irange(2)) {
    shape.output.push_back(
        output_size(args, weight, shape, input.sym_size(first + 1 + axis), axis));
  }
  shape.format = shape.batched ? result_format(input) : at::MemoryFormat::Contiguous;
}

void check_operands(const QuantizedConvArguments& args) {
  const char* op = args.op();
  check_codes(op, args.input, "input", "input", args.input, "input_scale", args.input_scale,
              "input_zero_point", args.input_zero_point);
  const char* weight = args.weight_size.has_value() ? "packed" : "weight";
  check_dtype(op, weight, args.weight, at::kChar);
  check_device(op, weight, args.weight, args.input, "input");
  check_dtype(op, "weight_scale", args.weight_scale, at::kFloat);
  check_dtype(op, "factor", args.factor, at::kDouble);
  check_dtype(op, "offset", args.offset, at::kDouble);
  if (args.skip.has_value()) {
    HORIZON_CHECK_VALUE(args.skip_scale.has_value() && args.skip_zero_point.has_value(), op, "skip",
                        "given with 'skip_scale' and 'skip_zero_point'", "None");
    check_codes(op, args.input, "input", "skip", *args.skip, "skip_scale", *args.skip_scale,
                "skip_zero_point", *args.skip_zero_point);
  }
  HORIZON_CHECK_VALUE(args.output_scale.has_value() == args.output_zero_point.has_value(), op,
                      "output_scale", "given together with 'output_zero_point'",
                      args.output_scale.has_value() ? "the scale alone" : "the zero point alone");
  if (args.output_scale.has_value()) {
    check_grid(op, args.input, "input", "output_scale", *args.output_scale, "output_zero_point",
               *args.output_zero_point);
  }
}

}  // namespace

QuantizedConvShape check_quantized_conv(const QuantizedConvArguments& args) {
  const char* op = args.op();
  check_operands(args);
  check_base(op, args.base);
  QuantizedConvShape shape;
  shape.activation = check_activation(op, args.activation);
  if (args.base != kBaseLinear) read_options(args, shape);
  c10::SymIntArrayRef weight = args.weight.sym_sizes();
  if (args.weight_size.has_value()) {
    check_packed_weight(op, args.weight, *args.weight_size, args.base, args.stride, args.dilation,
                        args.groups);
    weight = c10::fromIntArrayRefKnownNonNegative(*args.weight_size);
  } else {
    check_weight_size(op, "weight", weight, args.base, args.groups);
  }
  if (args.base == kBaseLinear) {
    check_linear(args, weight, shape);
  } else {
    check_convolution(args, weight, shape);
  }
  const std::pair<const char*, const at::Tensor*> channel_vectors[] = {
      {"weight_scale", &args.weight_scale}, {"factor", &args.factor}, {"offset", &args.offset}};
  for (const auto& [name, vector] : channel_vectors) {
    check_shape(op, name, *vector, {shape.out_channels});
    check_device(op, name, *vector, args.input, "input");
  }
  shape.result = shape.output;
  if (args.skip.has_value()) {
    shape.result = broadcast_sizes(op, "the convolution's output", shape.output, "skip",
                                   args.skip->sym_sizes());
  }
  if (shape.result.size() != 4) shape.format = at::MemoryFormat::Contiguous;
  return shape;
}

void check_pack_weight(const at::Tensor& weight, int64_t base, at::IntArrayRef stride,
                       at::IntArrayRef dilation, int64_t groups) {
  constexpr const char* op = "pack_weight";
  check_dtype(op, "weight", weight, at::kChar);
  check_base(op, base);
  check_weight_size(op, "weight", weight.sym_sizes(), base, groups);
  if (base != kBaseConvTranspose) return;
  read_list<2>(op, "stride", stride, 1);
  read_list<2>(op, "dilation", dilation, 1);
}

WeightShape check_packed_weight(const char* op, const at::Tensor& packed,
                                at::IntArrayRef weight_size, int64_t base, at::IntArrayRef stride,
                                at::IntArrayRef dilation, int64_t groups) {
  constexpr double kMaxEntries = 1099511627776;  // 2^40: sizes of packed forms fit int64
  check_dtype(op, "packed", packed, at::kChar);
  check_base(op, base);
  double entries = 1;
  for (const int64_t size : weight_size) {
    HORIZON_CHECK_VALUE(size >= 1, op, "weight_size", "positive", shape_text(weight_size));
    entries *= static_cast<double>(size);
  }
  HORIZON_CHECK_VALUE(entries <= kMaxEntries, op, "weight_size", "of at most 2^40 entries",
                      shape_text(weight_size));
  check_weight_size(op, "weight_size", c10::fromIntArrayRefKnownNonNegative(weight_size), base,
                    groups);
  if (base == kBaseConvTranspose) {
    read_list<2>(op, "stride", stride, 1);
    read_list<2>(op, "dilation", dilation, 1);
  }
  const WeightShape shape = weight_shape(weight_size, base, stride, dilation, groups);
  const int64_t bytes = weight_layout(shape).bytes;
  HORIZON_CHECK_VALUE(
      packed.dim() == 1 && packed.sym_numel() == bytes, op, "packed",
      c10::str("of shape [", bytes, "], pack_weight's result for weights of ", weight_size),
      shape_text(packed));
  return shape;
}

}  // namespace horizon::ops
