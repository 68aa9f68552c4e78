#include <torch/library.h>

#include "ops/cuda/on_device.h"
#include "ops/cuda/quantized_maps.h"

namespace horizon::ops::cuda {

TORCH_LIBRARY_IMPL(horizon, CUDA, m) {
  m.impl("quantized_add", &OnDevice<&quantized_add<DeviceRunner>>::call);
  m.impl("quantized_mul", &OnDevice<&quantized_mul<DeviceRunner>>::call);
  m.impl("quantized_affine", &OnDevice<&quantized_affine<DeviceRunner>>::call);
  m.impl("quantized_affine_scalar", &OnDevice<&quantized_affine_scalar<DeviceRunner>>::call);
  m.impl("quantized_lookup", &OnDevice<&quantized_lookup<DeviceRunner>>::call);
  m.impl("quantized_cat", &OnDevice<&quantized_cat<DeviceRunner>>::call);
}

}  // namespace horizon::ops::cuda
