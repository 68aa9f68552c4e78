#pragma once

#include <c10/cuda/CUDAStream.h>

#include "ops/cuda/convolution.h"
#include "ops/cuda/launch.h"

namespace horizon::ops::cuda {

/// Starts bodies on the current stream, and convolves there.
struct DeviceRunner {
  cudaStream_t stream = c10::cuda::getCurrentCUDAStream();

  template <typename Body>
  void operator()(const Grid& grid, const Body& body) const {
    launch(grid, body, stream);
  }

  template <typename... Args>
  at::Tensor convolve_centred_codes(const Args&... args) const {
    return cuda::convolve_centred_codes(args...);
  }
  template <typename... Args>
  at::Tensor convolve_values(const Args&... args) const {
    return cuda::convolve_values(args...);
  }
};

}  // namespace horizon::ops::cuda
