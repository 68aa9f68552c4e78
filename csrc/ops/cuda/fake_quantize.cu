#include <torch/library.h>

#include "ops/cuda/fake_quantize.h"
#include "ops/cuda/on_device.h"

namespace horizon::ops::cuda {

TORCH_LIBRARY_IMPL(horizon, CUDA, m) {
  m.impl("fake_quantize_per_tensor", &OnDevice<&fake_quantize_per_tensor<DeviceRunner>>::call);
  m.impl("fake_quantize_per_channel", &OnDevice<&fake_quantize_per_channel<DeviceRunner>>::call);
  m.impl("_fake_quantize_per_tensor_mask",
         &OnDevice<&fake_quantize_per_tensor_mask<DeviceRunner>>::call);
  m.impl("_fake_quantize_per_channel_mask",
         &OnDevice<&fake_quantize_per_channel_mask<DeviceRunner>>::call);
  m.impl("_mask_gradient", &OnDevice<&mask_gradient<DeviceRunner>>::call);
  m.impl("quantize", &OnDevice<&quantize<DeviceRunner>>::call);
  m.impl("dequantize", &OnDevice<&dequantize<DeviceRunner>>::call);
}

}  // namespace horizon::ops::cuda
