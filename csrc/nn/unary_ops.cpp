#include <ATen/ops/adaptive_avg_pool2d.h>
#include <ATen/ops/alias.h>
#include <ATen/ops/avg_pool2d.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/feature_dropout.h>
#include <ATen/ops/flatten.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/relu6.h>
#include <ATen/ops/zeros_like.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>

#include <sstream>
#include <typeinfo>
#include <vector>

#include "nn/unary.h"
#include "ops/quantized_affine.h"
#include "ops/quantized_max_pool.h"
#include "ops/quantized_pool.h"

namespace horizon::nn {
namespace {

using Pair = torch::ExpandingArray<2>;

std::vector<int64_t> to_list(const Pair& pair) { return {(*pair)[0], (*pair)[1]}; }

template <class Exact>
const Exact* exactly(const torch::nn::Module& module) {
  return typeid(module) == typeid(Exact) ? static_cast<const Exact*>(&module) : nullptr;
}

UnaryOp average_pool(const torch::nn::AvgPool2dOptions& options) {
  const auto kernel = to_list(options.kernel_size());
  const auto stride = to_list(options.stride());
  const auto padding = to_list(options.padding());
  const bool ceil_mode = options.ceil_mode(), count_include_pad = options.count_include_pad();
  const auto divisor = options.divisor_override();
  return {
      [=](const at::Tensor& x) {
        return at::avg_pool2d(x, kernel, stride, padding, ceil_mode, count_include_pad, divisor);
      },
      [=](const at::Tensor& q, const at::Tensor& s, const at::Tensor& z, const at::Tensor& out_s,
          const at::Tensor& out_z) {
        return ops::quantized_avg_pool2d(q, s, z, kernel, stride, padding, ceil_mode,
                                         count_include_pad, divisor, out_s, out_z);
      },
      {}};
}

UnaryOp adaptive_average_pool(const torch::nn::AdaptiveAvgPool2dOptions& options) {
  const auto wanted = *options.output_size();
  // An absent entry keeps the input's size.
  const auto size_for = [wanted](const at::Tensor& x) {
    std::vector<int64_t> size;
    for (const int64_t i : {0, 1}) {
      const auto entry = wanted[static_cast<std::size_t>(i)];
      size.push_back(entry ? *entry : x.size(x.dim() - 2 + i));
    }
    return size;
  };
  return {[=](const at::Tensor& x) { return at::adaptive_avg_pool2d(x, size_for(x)); },
          [=](const at::Tensor& q, const at::Tensor& s, const at::Tensor& z,
              const at::Tensor& out_s, const at::Tensor& out_z) {
            return ops::quantized_adaptive_avg_pool2d(q, s, z, size_for(q), out_s, out_z);
          }};
}

UnaryOp relu6() {
  return {[](const at::Tensor& x) { return at::relu6(x); },
          [](const at::Tensor& q, const at::Tensor& s, const at::Tensor& z, const at::Tensor& out_s,
             const at::Tensor& out_z) {
            const at::Tensor one = at::ones({1}, q.options().dtype(at::kDouble));
            return ops::quantized_affine(q, s, z, one, at::zeros_like(one), out_s, out_z, 2);
          }};
}

PassingOp max_pool(const torch::nn::MaxPool2dOptions& options) {
  const auto kernel = to_list(options.kernel_size());
  const auto stride = to_list(options.stride());
  const auto padding = to_list(options.padding());
  const auto dilation = to_list(options.dilation());
  const bool ceil_mode = options.ceil_mode();
  return {[=](const at::Tensor& x, bool) {
            return at::max_pool2d(x, kernel, stride, padding, dilation, ceil_mode);
          },
          [=](const at::Tensor& q, const at::Tensor&) {
            return ops::quantized_max_pool2d(q, kernel, stride, padding, dilation, ceil_mode);
          }};
}

PassingOp identity() {
  return {[](const at::Tensor& x, bool) { return at::alias(x); },
          [](const at::Tensor& q, const at::Tensor&) { return at::alias(q); }};
}

}  // namespace

std::string text_of(const torch::nn::Module& module) {
  std::ostringstream stream;
  module.pretty_print(stream);
  const std::string text = stream.str();
  const std::size_t scope = text.rfind("::", text.find('('));
  return scope == std::string::npos ? text : text.substr(scope + 2);
}

UnaryOp unary_op(const torch::nn::Module& module) {
  UnaryOp op;
  if (const auto* pool = exactly<torch::nn::AvgPool2dImpl>(module)) {
    op = average_pool(pool->options);
  } else if (const auto* adaptive = exactly<torch::nn::AdaptiveAvgPool2dImpl>(module)) {
    op = adaptive_average_pool(adaptive->options);
  } else if (exactly<torch::nn::ReLU6Impl>(module) != nullptr) {
    op = relu6();
  } else if (const auto* tanh = exactly<torch::nn::HardtanhImpl>(module)) {
    if (tanh->options.min_val() == 0 && tanh->options.max_val() == 6) op = relu6();
  }
  if (op.on_floats) op.text = text_of(module);
  return op;
}

PassingOp passing_op(const torch::nn::Module& module) {
  PassingOp op;
  if (exactly<torch::nn::ReLUImpl>(module) != nullptr) {
    op = {[](const at::Tensor& x, bool) { return at::relu(x); },
          [](const at::Tensor& q, const at::Tensor& z) { return at::maximum(q, z.to(at::kByte)); }};
  } else if (const auto* pool = exactly<torch::nn::MaxPool2dImpl>(module)) {
    op = max_pool(pool->options);
  } else if (const auto* flatten = exactly<torch::nn::FlattenImpl>(module)) {
    const int64_t first = flatten->options.start_dim(), last = flatten->options.end_dim();
    op = {[=](const at::Tensor& x, bool) { return at::alias(at::flatten(x, first, last)); },
          [=](const at::Tensor& q, const at::Tensor&) {
            return at::alias(at::flatten(q, first, last));
          }};
  } else if (const auto* dropout = exactly<torch::nn::DropoutImpl>(module)) {
    op = identity();
    op.dropout = dropout->options.p();
    op.on_floats = [p = op.dropout](const at::Tensor& x, bool training) {
      return training ? at::dropout(x, p, true) : at::alias(x);
    };
  } else if (const auto* dropout2d = exactly<torch::nn::Dropout2dImpl>(module)) {
    op = identity();
    op.dropout = dropout2d->options.p();
    op.on_floats = [p = op.dropout](const at::Tensor& x, bool training) {
      return training ? at::feature_dropout(x, p, true) : at::alias(x);
    };
  } else if (exactly<torch::nn::IdentityImpl>(module) != nullptr) {
    op = identity();
  }
  if (op.on_floats) op.text = text_of(module);
  return op;
}

}  // namespace horizon::nn
