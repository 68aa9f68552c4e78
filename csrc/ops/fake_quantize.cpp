#include "ops/fake_quantize.h"

#include <torch/library.h>

#include <algorithm>
#include <numeric>

#include "ops/checks.h"

namespace horizon::ops {
namespace {

constexpr const char* kPerTensor = "fake_quantize_per_tensor";
constexpr const char* kPerChannel = "fake_quantize_per_channel";

TORCH_LIBRARY_FRAGMENT(horizon, m) {
  m.def(
      "fake_quantize_per_tensor(Tensor x, Tensor scale, Tensor zero_point, int quant_min, "
      "int quant_max) -> Tensor");
  m.def(
      "fake_quantize_per_channel(Tensor x, Tensor scale, Tensor zero_point, int axis, "
      "int quant_min, int quant_max) -> Tensor");
  m.def(
      "_fake_quantize_per_tensor_mask(Tensor x, Tensor scale, Tensor zero_point, int quant_min, "
      "int quant_max) -> (Tensor, Tensor)");
  m.def(
      "_fake_quantize_per_channel_mask(Tensor x, Tensor scale, Tensor zero_point, int axis, "
      "int quant_min, int quant_max) -> (Tensor, Tensor)");
  m.def("_mask_gradient(Tensor grad, Tensor mask, int[] order) -> Tensor");
}

void check_channels(const char* argument, const at::Tensor& values, const at::Tensor& x,
                    int64_t axis) {
  HORIZON_CHECK_VALUE(
      values.dim() == 1 && values.sym_size(0) == x.sym_size(axis), kPerChannel, argument,
      c10::str("of shape [", x.sym_size(axis), "] (one entry for each index of axis ", axis, ")"),
      "shape " + shape_text(values));
  check_device(kPerChannel, argument, values, x, "x");
}

}  // namespace

void check_per_tensor(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& zero_point,
                      int64_t quant_min, int64_t quant_max) {
  check_float(kPerTensor, "x", x);
  check_scale(kPerTensor, "scale", scale);
  check_device(kPerTensor, "scale", scale, x, "x");
  check_zero_point(kPerTensor, "zero_point", zero_point);
  check_device(kPerTensor, "zero_point", zero_point, x, "x");
  check_quant_range(kPerTensor, quant_min, quant_max);
}

int64_t check_per_channel(const at::Tensor& x, const at::Tensor& scale,
                          const at::Tensor& zero_point, int64_t axis, int64_t quant_min,
                          int64_t quant_max) {
  check_float(kPerChannel, "x", x);
  axis = wrap_axis(kPerChannel, "axis", axis, x.dim());
  check_float(kPerChannel, "scale", scale);
  check_channels("scale", scale, x, axis);
  check_integer(kPerChannel, "zero_point", zero_point);
  check_channels("zero_point", zero_point, x, axis);
  check_quant_range(kPerChannel, quant_min, quant_max);
  return axis;
}

void check_mask_gradient(const at::Tensor& grad, const at::Tensor& mask, at::IntArrayRef order) {
  constexpr const char* kOp = "_mask_gradient";
  check_float(kOp, "grad", grad);
  check_dtype(kOp, "mask", mask, at::kByte);
  check_shape(kOp, "mask", mask, {mask_size(grad)});
  check_device(kOp, "mask", mask, grad, "grad");
  std::vector<int64_t> sorted = order.vec();
  std::sort(sorted.begin(), sorted.end());
  bool permutation = static_cast<int64_t>(sorted.size()) == grad.dim();
  for (size_t i = 0; permutation && i < sorted.size(); ++i) {
    permutation = sorted[i] == static_cast<int64_t>(i);
  }
  HORIZON_CHECK_VALUE(permutation, kOp, "order",
                      c10::str("a permutation of the ", grad.dim(), " dimensions"),
                      shape_text(order));
}

c10::SymInt mask_size(const at::Tensor& x) { return (x.sym_numel() + 7) / 8; }

std::vector<int64_t> memory_order(const at::Tensor& dense) {
  std::vector<int64_t> order(static_cast<size_t>(dense.dim()));
  std::iota(order.begin(), order.end(), 0);
  if (dense.is_contiguous()) return order;
  const auto strides = dense.sym_strides();
  // Equal strides only where a size is 1, and there the order does not matter.
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return strides[static_cast<size_t>(a)] > strides[static_cast<size_t>(b)];
  });
  return order;
}

std::vector<int64_t> inverse_order(at::IntArrayRef order) {
  std::vector<int64_t> inverse(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    inverse[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  }
  return inverse;
}

at::Tensor fake_quantize_per_tensor(const at::Tensor& x, const at::Tensor& scale,
                                    const at::Tensor& zero_point, int64_t quant_min,
                                    int64_t quant_max) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("horizon::fake_quantize_per_tensor", "")
                             .typed<decltype(fake_quantize_per_tensor)>();
  return op.call(x, scale, zero_point, quant_min, quant_max);
}

at::Tensor fake_quantize_per_channel(const at::Tensor& x, const at::Tensor& scale,
                                     const at::Tensor& zero_point, int64_t axis, int64_t quant_min,
                                     int64_t quant_max) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("horizon::fake_quantize_per_channel", "")
                             .typed<decltype(fake_quantize_per_channel)>();
  return op.call(x, scale, zero_point, axis, quant_min, quant_max);
}

std::tuple<at::Tensor, at::Tensor> fake_quantize_per_tensor_mask(const at::Tensor& x,
                                                                 const at::Tensor& scale,
                                                                 const at::Tensor& zero_point,
                                                                 int64_t quant_min,
                                                                 int64_t quant_max) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("horizon::_fake_quantize_per_tensor_mask", "")
                             .typed<decltype(fake_quantize_per_tensor_mask)>();
  return op.call(x, scale, zero_point, quant_min, quant_max);
}

std::tuple<at::Tensor, at::Tensor> fake_quantize_per_channel_mask(const at::Tensor& x,
                                                                  const at::Tensor& scale,
                                                                  const at::Tensor& zero_point,
                                                                  int64_t axis, int64_t quant_min,
                                                                  int64_t quant_max) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("horizon::_fake_quantize_per_channel_mask", "")
                             .typed<decltype(fake_quantize_per_channel_mask)>();
  return op.call(x, scale, zero_point, axis, quant_min, quant_max);
}

at::Tensor mask_gradient(const at::Tensor& grad, const at::Tensor& mask, at::IntArrayRef order) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("horizon::_mask_gradient", "")
                             .typed<decltype(mask_gradient)>();
  return op.call(grad, mask, order);
}

}  // namespace horizon::ops
