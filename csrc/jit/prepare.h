#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <memory>

namespace horizon::jit {

/// ValueError naming the operator and the remedy where `graph` holds one that is not registered:
/// alias analysis would abort on it.
void check_registered(torch::jit::Graph& graph, const char* call);

/// Inlines calls, replaces in-place operators where nothing else sees the difference, and refuses
/// what runs in training mode.
void prepare_graph(const std::shared_ptr<torch::jit::Graph>& graph);

}  // namespace horizon::jit
