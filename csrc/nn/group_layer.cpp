#include "nn/group_layer.h"

namespace horizon::nn {

at::Tensor GroupLayer::forward(const at::Tensor& input) {
  check_add(false);
  return compute_checked({input, std::nullopt, std::nullopt}, false);
}

at::Tensor GroupLayer::forward_sized(const at::Tensor& input, at::IntArrayRef output_size) {
  check_add(false);
  return compute_checked({input, std::nullopt, output_size.vec()}, false);
}

at::Tensor GroupLayer::run(const at::Tensor& input, const at::Tensor& skip,
                           at::OptionalIntArrayRef output_size) {
  check_add(true);
  std::optional<std::vector<int64_t>> size;
  if (output_size) size = output_size->vec();
  return compute_checked({input, skip, std::move(size)}, false);
}

at::Tensor GroupLayer::add(const at::Tensor& x, const at::Tensor& y) {
  check_add(true);
  return compute_checked(resolve_operands(group, x, y, live_statistics()), false);
}

at::Tensor GroupLayer::add_relu(const at::Tensor& x, const at::Tensor& y) {
  check_add(true);
  return compute_checked(resolve_operands(group, x, y, live_statistics()), true);
}

void GroupLayer::check_add(bool wanted) const {
  TORCH_CHECK_VALUE(wanted || !variant().add, label(),
                    " is a fused add: use its methods add(x, y) and add_relu(x, y), or "
                    "run(input, skip) where it was built by hand");
  TORCH_CHECK_VALUE(!wanted || variant().add, label(), " has no add: use forward(input)");
}

at::Tensor GroupLayer::compute_checked(const Operands& operands, bool add_relu) {
  check_defined(operands.source, label());
  if (operands.skip) check_defined(*operands.skip, label(), "skip");
  if (spec().base != 1 && operands.output_size) {
    return Layer::forward_sized(operands.source, *operands.output_size);
  }
  return compute(operands, add_relu);
}

void GroupLayer::refuse(const char* method) const {
  TORCH_CHECK_VALUE(false, label(), " was fused and serves add and add_relu only, got a call of ",
                    method, ": use a FloatFunctional of its own for ", method);
}

at::Tensor GroupLayer::sub(const at::Tensor& /*x*/, const at::Tensor& /*y*/) { refuse("sub"); }

at::Tensor GroupLayer::mul(const at::Tensor& /*x*/, const at::Tensor& /*y*/) { refuse("mul"); }

at::Tensor GroupLayer::cat(const std::vector<at::Tensor>& /*tensors*/, int64_t /*dim*/) {
  refuse("cat");
}

}  // namespace horizon::nn
