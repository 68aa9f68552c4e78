#include <torch/library.h>

#include "ops/cuda/on_device.h"
#include "ops/cuda/quantize_activation.h"

namespace horizon::ops::cuda {

TORCH_LIBRARY_IMPL(horizon, CUDA, m) {
  m.impl("observe_", &OnDevice<&observe_<DeviceRunner>>::call);
  m.impl("quantize_activation", &OnDevice<&quantize_activation<DeviceRunner>>::call);
  m.impl("_quantize_activation_mask", &OnDevice<&quantize_activation_mask<DeviceRunner>>::call);
}

}  // namespace horizon::ops::cuda
