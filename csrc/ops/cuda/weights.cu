#include <torch/library.h>

#include "ops/cuda/on_device.h"
#include "ops/cuda/weights.h"

namespace horizon::ops::cuda {

TORCH_LIBRARY_IMPL(horizon, CUDA, m) {
  m.impl("weight_scale", &OnDevice<&weight_scale<DeviceRunner>>::call);
  m.impl("quantize_weight", &OnDevice<&quantize_weight<DeviceRunner>>::call);
  m.impl("fake_quantize_weight", &OnDevice<&fake_quantize_weight<DeviceRunner>>::call);
}

}  // namespace horizon::ops::cuda
