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

/// What is known of the grid of an annotated value.
struct PairGrid {
  enum class Kind : int64_t {
    kUnknown,  ///< to be observed
    kFixed,    ///< a quantizer in the graph gives it
    kFloat,    ///< the result of a prepared group without quantizer: no grid
  };
  Kind kind = Kind::kUnknown;
  ValueGrid grid{1.0F, 0};
};

/// For each pair, in graph order, what the graph says.
std::vector<PairGrid> known_grids(const torch::jit::Module& module);

/// A copy of a partitioned module that observes the range of every annotated value.
///
/// The state of pair i is in the attributes `horizon_<i>_min_val`, `_max_val`, `_observed`,
/// `_scale` and `_zero_point`, as horizon::observe_ keeps it; pairs are counted in graph order. A
/// max pooling or dropout at the end of a group takes the range of its data, whose grid it keeps.
torch::jit::Module add_observers(const torch::jit::Module& module, int64_t preset);

/// A copy of a partitioned module in which groups run on codes.
///
/// `grids`: one for each pair, in graph order; kFloat leaves a value without one. Groups of conv1d,
/// conv2d, conv_transpose2d, linear, add and mul (then batch norm, relu, relu6, max pooling) with
/// constant weights become integer operators, and so do average pools, means and cats between
/// pairs; what else there is runs in float on the values of the grids. Groups of a prepared module
/// (horizon::fused) become exactly what they compute in eval mode.
torch::jit::Module lower(const torch::jit::Module& module, const std::vector<PairGrid>& grids);

}  // namespace horizon::jit
