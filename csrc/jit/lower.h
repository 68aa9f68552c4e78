#pragma once

#include <cstdint>
#include <vector>

namespace torch::jit {
struct Module;
}

namespace horizon::jit {

/// The grid of a value: scale, and zero point as stored (0..255).
struct ValueGrid {
  float scale;
  int32_t zero_point;
};

/// A copy of a partitioned module that observes the range of every annotated value.
///
/// The state of pair i is in the attributes `horizon_<i>_min_val`, `_max_val`, `_observed`,
/// `_scale` and `_zero_point`, as horizon::observe_ keeps it; pairs are counted in graph order. A
/// max pooling or dropout at the end of a group takes the range of its data, whose grid it keeps.
torch::jit::Module add_observers(const torch::jit::Module& module, int64_t preset);

/// A copy of a partitioned module in which groups run on codes.
///
/// `grids`: one for each pair, in graph order. Groups of conv2d, conv_transpose2d, linear, add and
/// mul (then batch norm, relu, relu6, max_pool2d) with constant weights become integer operators;
/// other groups run in float on the values of the grids.
torch::jit::Module lower(const torch::jit::Module& module, const std::vector<ValueGrid>& grids);

}  // namespace horizon::jit
