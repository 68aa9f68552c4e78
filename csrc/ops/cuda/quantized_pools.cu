#include <torch/library.h>

#include "ops/cuda/on_device.h"
#include "ops/cuda/quantized_pools.h"

namespace horizon::ops::cuda {

TORCH_LIBRARY_IMPL(horizon, CUDA, m) {
  m.impl("quantized_avg_pool2d", &OnDevice<&quantized_avg_pool2d<DeviceRunner>>::call);
  m.impl("quantized_adaptive_avg_pool2d",
         &OnDevice<&quantized_adaptive_avg_pool2d<DeviceRunner>>::call);
  m.impl("quantized_mean", &OnDevice<&quantized_mean<DeviceRunner>>::call);
  m.impl("quantized_max_pool2d", &OnDevice<&quantized_max_pool2d<DeviceRunner>>::call);
}

}  // namespace horizon::ops::cuda
