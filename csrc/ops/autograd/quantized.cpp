#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace horizon::ops {
namespace {

/// Codes have no gradient, and neither has the float result of a group without an output
/// quantizer: it is inference. So the graph ends here, even where a scale requires grad.
void without_gradient(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                      torch::jit::Stack* stack) {
  at::AutoDispatchBelowADInplaceOrView guard;
  op.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
}

}  // namespace
}  // namespace horizon::ops

TORCH_LIBRARY_IMPL(horizon, Autograd, m) {
  using horizon::ops::without_gradient;
  for (const char* op :
       {"quantized_conv", "quantized_conv_packed", "pack_weight", "unpack_weight", "quantized_add",
        "quantized_mul", "quantized_affine", "quantized_affine_scalar", "quantized_cat",
        "quantized_avg_pool2d", "quantized_adaptive_avg_pool2d", "quantized_max_pool2d",
        "quantized_mean", "quantized_lookup"}) {
    m.impl(op, torch::CppFunction::makeFromBoxedFunction<&without_gradient>());
  }
}
