#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include "jit/partition.h"

namespace horizon::jit {

/// The record of a partition stays with its graph: as attributes of the parameter node, which are
/// neither printed nor serialized nor seen by the executor.
void write_record(torch::jit::Graph& graph, const PartitionReport& report);
void erase_record(torch::jit::Graph& graph);
bool has_record(torch::jit::Graph& graph);

}  // namespace horizon::jit
