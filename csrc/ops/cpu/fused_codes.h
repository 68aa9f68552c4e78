#pragma once

#include <ATen/core/Tensor.h>

#include "ops/fused.h"

// The parts of a group's forward that work on stored codes.
namespace horizon::ops {

/// A group's input as stored codes, in its own shape.
struct InputCodes {
  at::Tensor codes;  ///< uint8, dense, channels last if asked for
  bool complete;     ///< whether no value was NaN, which has no code
};

/// ValueError if `input_scale` and `input_zero_point` are given and no grid.
void check_input_grid(const FusedArgs& args);

/// The codes of an input that lies on `input_scale` and `input_zero_point`.
InputCodes encode_input(const FusedArgs& args, bool channels_last);

/// Whether z is computed from codes in training: a function of dtype, shapes and instruction set.
/// Where it is not, a float convolution is as fast, or exact integer products are slower.
bool computes_on_codes(const FusedArgs& args);

/// z in float32 from the input's codes: float(sum) * (s_x s_w) + bias, as the converted model
/// computes it before its batch norm. Undefined if weight or bias are not finite, or too large to
/// be scaled in float32: the float convolution then says what comes out.
at::Tensor convolve_codes(const FusedArgs& args, const at::Tensor& codes, bool channels_last);

}  // namespace horizon::ops
