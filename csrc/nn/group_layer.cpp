#include "nn/group_layer.h"

namespace horizon::nn {

at::Tensor GroupLayer::forward(const at::Tensor& input) {
  TORCH_CHECK_VALUE(!variant().add, label(),
                    " is a fused add: use its methods add(x, y) and add_relu(x, y), or "
                    "run(input, skip) where it was built by hand");
  return compute({input, std::nullopt}, false);
}

at::Tensor GroupLayer::run(const at::Tensor& input, const at::Tensor& skip) {
  check_add();
  return compute({input, skip}, false);
}

at::Tensor GroupLayer::add(const at::Tensor& x, const at::Tensor& y) {
  check_add();
  return compute(resolve_operands(group, x, y, live_statistics()), false);
}

at::Tensor GroupLayer::add_relu(const at::Tensor& x, const at::Tensor& y) {
  check_add();
  return compute(resolve_operands(group, x, y, live_statistics()), true);
}

void GroupLayer::check_add() const {
  TORCH_CHECK_VALUE(variant().add, label(), " has no add: use forward(input)");
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
