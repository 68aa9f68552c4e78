#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

// What stands in for CUDA kernels that this library does not have: it says so.
namespace horizon::ops {
namespace {

#if defined(HORIZON_HAVE_CUDA)

void refuse(const c10::OperatorHandle& op, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, op.operator_name().name.substr(sizeof("horizon::") - 1),
      ": has no CUDA kernel yet; move the converted model and its inputs to the CPU");
}

constexpr const char* kOperators[] = {"quantized_conv", "quantized_conv_packed"};

#else

void refuse(const c10::OperatorHandle& op, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, op.operator_name().name.substr(sizeof("horizon::") - 1),
      ": tensors are on a CUDA device, and this build of horizon-plugin has CPU kernels only. "
      "Install a CUDA build of torch and the CUDA toolkit, then build horizon-plugin again with "
      "HORIZON_CUDA=ON, or move the model and its inputs to the CPU");
}

// Operators with kernels of their own for each kind of device; others are made of these.
constexpr const char* kOperators[] = {
    "_fake_quantize_per_channel_mask",
    "_fake_quantize_per_tensor_mask",
    "_fused_backward",
    "_fused_forward",
    "_mask_gradient",
    "_quantize_activation_mask",
    "dequantize",
    "fake_quantize_per_channel",
    "fake_quantize_per_tensor",
    "fake_quantize_weight",
    "fused",
    "observe_",
    "pack_weight",
    "quantize",
    "quantize_activation",
    "quantize_weight",
    "quantized_adaptive_avg_pool2d",
    "quantized_add",
    "quantized_affine",
    "quantized_affine_scalar",
    "quantized_avg_pool2d",
    "quantized_cat",
    "quantized_conv",
    "quantized_conv_packed",
    "quantized_lookup",
    "quantized_max_pool2d",
    "quantized_mean",
    "quantized_mul",
    "unpack_weight",
    "weight_scale",
};

#endif

}  // namespace

TORCH_LIBRARY_IMPL(horizon, CUDA, m) {
  for (const char* name : kOperators) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&refuse>());
  }
}

}  // namespace horizon::ops
