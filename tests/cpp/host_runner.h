#pragma once

#include <ATen/ops/sub.h>

#include "ops/cuda/launch.h"
#include "ops/fused_convolution.h"

/// Runs CUDA kernel bodies on the host, on CPU tensors, and convolves as PyTorch does there.
struct HostRunner {
  bool backwards = false;

  template <typename Body>
  void operator()(const horizon::ops::cuda::Grid& grid, const Body& body) const {
    if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
    horizon::ops::cuda::run_on_host(grid, body, backwards);
  }
  at::Tensor convolve_centred_codes(const horizon::ops::FusedBackwardArgs& geometry,
                                    const at::Tensor& codes, const at::Tensor& zero_point,
                                    const at::Tensor& weight_codes, bool channels_last) const {
    return horizon::ops::convolve(geometry, at::sub(codes.to(at::kFloat), zero_point.reshape({})),
                                  weight_codes.to(at::kFloat), std::nullopt, channels_last);
  }
  at::Tensor convolve_values(const horizon::ops::FusedBackwardArgs& geometry,
                             const at::Tensor& values, const at::Tensor& weight,
                             const std::optional<at::Tensor>& bias, bool channels_last) const {
    return horizon::ops::convolve(geometry, values, weight, bias, channels_last);
  }
};
