#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

// torch's headers of graphs are heavy, and most programs that include this one need none of them.
namespace torch::jit {
struct Graph;
struct Module;
}  // namespace torch::jit

namespace horizon::jit {

/// What `partition` annotates.
struct PartitionOptions {
  std::string dtype_input = "int8";       ///< int8, uint8 or int16
  std::vector<int64_t> skip_conv_layers;  ///< numbers of convolutions, in graph order
  bool skip_dense_layer = true;
  std::vector<std::string> anchors = {"conv1d", "conv2d"};  ///< conv_transpose2d as well
  bool annotate_outputs = true;  ///< false leaves returned values without a pair
  bool prepare = true;           ///< inline, and replace in-place operators, first
};

/// What became of one convolution.
struct ConvolutionReport {
  int64_t number;      ///< its place among all convolutions, in graph order
  std::string kind;    ///< conv1d, conv2d, conv3d, conv_transpose2d, …
  std::string scope;   ///< the module it comes from; empty where the graph does not say
  std::string status;  ///< "quantized", "skipped", or the reason why neither
};

struct PartitionReport {
  PartitionOptions options;
  std::vector<ConvolutionReport> convolutions;

  /// A table, one convolution a line.
  std::string str() const;
};

/// Delimits every quantizable group of `graph` by pairs of `annotation::cast_hint` and
/// `annotation::stop_fusion`, as docs/partition.md describes.
///
/// Works on a copy, which takes the place of `graph` on success. ValueError for unknown dtypes and
/// anchors, numbers that no convolution has, operators that are not registered, batch norm and
/// dropout in training mode, and pairs that the graph holds already and that do not fit.
PartitionReport partition(std::shared_ptr<torch::jit::Graph>& graph,
                          const PartitionOptions& options = {});

/// Partitions `graph` itself; a call that fails leaves it unchanged.
PartitionReport partition_inplace(const std::shared_ptr<torch::jit::Graph>& graph,
                                  const PartitionOptions& options = {});

/// A copy of `module` in which everything that eval mode allows is a constant of `forward`, and
/// conv-bn is folded (and nothing else); a module that is frozen already is copied only.
///
/// ValueError for a module in training mode.
torch::jit::Module prepare_module(const torch::jit::Module& module);

/// Removes every annotation from `graph`, and the record of a partition.
void strip_annotations(const std::shared_ptr<torch::jit::Graph>& graph);

/// The report of a partition that is recorded in `graph`; RuntimeError without one.
PartitionReport recorded_report(const std::shared_ptr<torch::jit::Graph>& graph);

}  // namespace horizon::jit
