#pragma once

#include <memory>
#include <string>

namespace torch::jit {
struct Graph;
}

namespace horizon::jit {

/// The operators of `graph` under their names in Relay, one `%n = op(args)` a line.
///
/// Arguments are tensors (and the other operand of an add or mul); constant ones are numbered
/// `meta[Constant][n]`. Inputs keep their names, blocks are indented.
std::string dump_relay(const std::shared_ptr<torch::jit::Graph>& graph);

}  // namespace horizon::jit
