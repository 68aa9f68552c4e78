#include <ATen/ExpandUtils.h>

#include <cmath>

#include "ops/checks.h"
#include "ops/fused.h"
#include "ops/fused_shapes.h"

namespace horizon::ops {
namespace {

constexpr const char* kOp = "fused";
using Maybe = std::optional<at::Tensor>;

/// Dense, on the input's device, without a forward-mode tangent.
void check_place(const char* name, const at::Tensor& tensor, const at::Tensor& input) {
  HORIZON_CHECK_TYPE(tensor.layout() == at::kStrided, kOp, name, "a dense tensor", tensor.layout());
  check_device(kOp, name, tensor, input, "input");
  check_no_tangent(kOp, name, tensor);
}

void check_like_input(const char* name, const at::Tensor& tensor, const at::Tensor& input) {
  check_dtype(kOp, name, tensor, input.scalar_type());
  check_place(name, tensor, input);
}

/// Parameters may be float32 beside an input of another dtype, as under autocast.
void check_parameter(const char* name, const at::Tensor& tensor, const at::Tensor& input) {
  const at::ScalarType type = tensor.scalar_type();
  HORIZON_CHECK_TYPE(type == input.scalar_type() || type == at::kFloat, kOp, name,
                     input.scalar_type() == at::kFloat
                         ? dtype_text(at::kFloat)
                         : c10::str(dtype_text(input.scalar_type()), " or float32"),
                     dtype_text(type));
  check_place(name, tensor, input);
}

void check_choices(const FusedArgs& a) {
  HORIZON_CHECK_VALUE(a.base >= 0 && a.base <= 2, kOp, "base",
                      "0 (conv2d), 1 (conv_transpose2d) or 2 (linear)", a.base);
  HORIZON_CHECK_VALUE(a.activation >= 0 && a.activation <= 2, kOp, "activation",
                      "0 (none), 1 (relu) or 2 (relu6)", a.activation);
}

void check_list(const char* name, const std::vector<int64_t>& list, bool sides, int64_t least) {
  HORIZON_CHECK_VALUE(list.size() == 2 || (sides && list.size() == 4), kOp, name,
                      sides ? "a list of 2 or 4 numbers" : "a list of 2 numbers", shape_text(list));
  for (const int64_t value : list) {
    HORIZON_CHECK_VALUE(value >= least && value < (int64_t{1} << 31), kOp, name,
                        c10::str("a list of numbers of at least ", least), shape_text(list));
  }
}

void check_convolution(const FusedArgs& a) {
  const bool transposed = static_cast<Base>(a.base) == Base::kConvTranspose2d;
  const auto in = a.input.sym_sizes();
  HORIZON_CHECK_VALUE(in.size() == 3 || in.size() == 4, kOp, "input", "3-D or 4-D",
                      "shape " + shape_text(a.input));
  HORIZON_CHECK_VALUE(in.size() == 4 || !a.batch_norm, kOp, "input", "4-D with a batch norm",
                      "shape " + shape_text(a.input));
  check_list("stride", a.stride, false, 1);
  check_list("padding", a.padding, !transposed, 0);
  check_list("dilation", a.dilation, false, 1);
  check_list("output_padding", a.output_padding, false, 0);
  const c10::SymInt channels = transposed ? a.weight.sym_size(0) : a.weight.sym_size(1) * a.groups;
  const c10::SymInt& got = in[in.size() - 3];
  HORIZON_CHECK_VALUE(got == channels, kOp, "input",
                      c10::str("of ", channels, " channels, as the weight of shape ",
                               shape_text(a.weight), " with ", a.groups, " groups"),
                      "shape " + shape_text(a.input));
  const FusedBackwardArgs conv = fused_convolution(a);
  for (const size_t axis : {size_t{0}, size_t{1}}) {
    const int64_t extra = a.output_padding[axis];
    if (transposed) {
      HORIZON_CHECK_VALUE(extra < a.stride[axis] || extra < a.dilation[axis], kOp, "output_padding",
                          "smaller than stride or dilation", shape_text(a.output_padding));
    } else {
      HORIZON_CHECK_VALUE(extra == 0, kOp, "output_padding", "0 for a convolution",
                          shape_text(a.output_padding));
    }
    const c10::SymInt& extent = in[in.size() - 2 + axis];
    // The numerator of the output size; a negative one would be rounded towards zero.
    const int64_t after = a.padding[a.padding.size() == 4 ? axis + 2 : axis];
    const c10::SymInt reach =
        (a.weight.sym_size(2 + static_cast<int64_t>(axis)) - 1) * a.dilation[axis] + 1;
    const bool fits =
        transposed ? fused_extent(conv, extent, a.weight.sym_size(2 + static_cast<int64_t>(axis)),
                                  axis) >= 1
                   : extent + a.padding[axis] + after >= reach;
    HORIZON_CHECK_VALUE(extent >= 1 && fits, kOp, "input",
                        "large enough for the kernel (output of at least 1 x 1)",
                        "shape " + shape_text(a.input));
  }
}

void check_linear(const FusedArgs& a) {
  const int64_t dim = a.input.dim();
  HORIZON_CHECK_VALUE(dim >= 1, kOp, "input", "at least 1-D", "shape []");
  HORIZON_CHECK_VALUE(!a.batch_norm || dim == 2, kOp, "input", "2-D with a batch norm after Linear",
                      "shape " + shape_text(a.input));
  HORIZON_CHECK_VALUE(a.input.sym_size(dim - 1) == a.weight.sym_size(1), kOp, "input",
                      c10::str("of ", a.weight.sym_size(1), " features"),
                      "shape " + shape_text(a.input));
}

void check_vector(const char* name, const Maybe& tensor, const FusedArgs& a, int64_t channels) {
  if (!tensor.has_value()) return;
  check_parameter(name, *tensor, a.input);
  const c10::SymInt size = channels;
  check_shape(kOp, name, *tensor, c10::SymIntArrayRef(&size, 1));
}

void check_batch_norm(const FusedArgs& a, int64_t channels) {
  check_vector("bn_weight", a.bn_weight, a, channels);
  check_vector("bn_bias", a.bn_bias, a, channels);
  check_vector("running_mean", a.running_mean, a, channels);
  check_vector("running_var", a.running_var, a, channels);
  HORIZON_CHECK_VALUE(a.running_mean.has_value() == a.running_var.has_value(), kOp, "running_mean",
                      "given together with running_var", "one of them");
  if (!a.batch_norm) {
    HORIZON_CHECK_VALUE(!a.batch_stats, kOp, "batch_stats", "False without a batch norm", "True");
    return;
  }
  HORIZON_CHECK_VALUE(a.batch_stats || a.running_mean.has_value(), kOp, "running_mean",
                      "given unless batch_stats", "None");
  HORIZON_CHECK_VALUE(std::isfinite(a.eps) && a.eps >= 0, kOp, "eps", "finite and at least 0",
                      a.eps);
  HORIZON_CHECK_VALUE(!a.momentum.has_value() || std::isfinite(*a.momentum), kOp, "momentum",
                      "finite or None", *a.momentum);
  if (a.num_batches_tracked.has_value()) {
    check_dtype(kOp, "num_batches_tracked", *a.num_batches_tracked, at::kLong);
    check_scalar(kOp, "num_batches_tracked", *a.num_batches_tracked);
    check_place("num_batches_tracked", *a.num_batches_tracked, a.input);
  }
}

void check_grid(const char* name, const Maybe& scale, const char* zero_name, const Maybe& zero,
                const FusedArgs& a) {
  HORIZON_CHECK_VALUE(scale.has_value() == zero.has_value(), kOp, name,
                      c10::str("given together with ", zero_name), "one of them");
  if (!scale.has_value()) return;
  check_scale(kOp, name, *scale);
  check_place(name, *scale, a.input);
  check_zero_point(kOp, zero_name, *zero);
  check_place(zero_name, *zero, a.input);
}

void check_skip(const FusedArgs& a) {
  HORIZON_CHECK_VALUE(a.skip.has_value() || !a.skip_scale.has_value(), kOp, "skip_scale",
                      "None without a skip", "a tensor");
  if (!a.skip.has_value()) return;
  check_like_input("skip", *a.skip, a.input);
  const SymSizes z = fused_z_sizes(fused_convolution(a));
  const auto skip = a.skip->sym_sizes();
  for (size_t i = 0; i < std::min(z.size(), skip.size()); ++i) {
    const c10::SymInt& x = z[z.size() - 1 - i];
    const c10::SymInt& y = skip[skip.size() - 1 - i];
    HORIZON_CHECK_VALUE(x == y || x == 1 || y == 1, kOp, "skip",
                        c10::str("broadcastable with the result of shape ", c10::SymIntArrayRef(z)),
                        "shape " + shape_text(*a.skip));
  }
}

void check_integer(const FusedArgs& a) {
  if (!a.integer) return;
  HORIZON_CHECK_VALUE(a.input_scale.has_value(), kOp, "input_scale", "given with integer=True",
                      "None");
  HORIZON_CHECK_VALUE(!a.skip.has_value() || a.skip_scale.has_value(), kOp, "skip_scale",
                      "given with integer=True and a skip", "None");
  HORIZON_CHECK_VALUE(!a.batch_stats, kOp, "batch_stats", "False with integer=True", "True");
  HORIZON_CHECK_VALUE(a.quantize_weight, kOp, "quantize_weight", "True with integer=True", "False");
  HORIZON_CHECK_VALUE(!a.quantizer.observes(), kOp, "observe", "False with integer=True", "True");
}

}  // namespace

void check_fused(const FusedArgs& a) {
  check_choices(a);
  check_float(kOp, "input", a.input);
  check_place("input", a.input, a.input);
  check_weight(kOp, a.weight, a.base, a.groups);
  check_parameter("weight", a.weight, a.input);
  for (int64_t i = 0; i < a.weight.dim(); ++i) {
    HORIZON_CHECK_VALUE(a.weight.sym_size(i) >= 1, kOp, "weight", "not empty",
                        "shape " + shape_text(a.weight));
  }
  if (static_cast<Base>(a.base) == Base::kLinear) {
    check_linear(a);
  } else {
    check_convolution(a);
  }
  const int64_t channels = fused_channels(a.weight, a.base, a.groups);
  check_vector("bias", a.bias, a, channels);
  check_batch_norm(a, channels);
  check_skip(a);
  check_grid("input_scale", a.input_scale, "input_zero_point", a.input_zero_point, a);
  check_grid("skip_scale", a.skip_scale, "skip_zero_point", a.skip_zero_point, a);
  check_quantizer(kOp, a.quantizer, a.input);
  check_integer(a);
}

}  // namespace horizon::ops
