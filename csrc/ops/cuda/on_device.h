#pragma once

#include <ATen/DeviceGuard.h>
#include <ATen/core/Tensor.h>

#include "ops/cuda/runner.h"

namespace horizon::ops::cuda {

/// An op, written as a function of a runner and its arguments, as a kernel of the dispatcher: on
/// the current stream of the first argument's device, a tensor or a list of them.
template <auto kOp>
struct OnDevice;

template <typename Result, typename First, typename... Rest,
          Result (*kOp)(const DeviceRunner&, First, Rest...)>
struct OnDevice<kOp> {
  static Result call(First first, Rest... rest) {
    // Of any kind of device: that a CPU tensor stands among others is for the op's checks to say.
    const at::OptionalDeviceGuard guard(at::device_of(first));
    return kOp(DeviceRunner(), first, rest...);
  }
};

}  // namespace horizon::ops::cuda
