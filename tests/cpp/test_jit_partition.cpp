#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/ir/irparser.h>
#include <torch/csrc/jit/serialization/import.h>

#include <memory>
#include <sstream>
#include <string>

#include "catch.h"
#include "jit/dump.h"
#include "jit/groups.h"
#include "jit/partition.h"

namespace horizon::jit {
namespace {

using torch::jit::Graph;

// A body in the IR's text, between constants that every graph here uses and its weights.
std::shared_ptr<Graph> parse(const std::string& body, const std::string& inputs = "%x : Tensor") {
  const std::string text = c10::str("graph(", inputs, R"(, %w : Tensor, %b : Tensor):
  %none : NoneType = prim::Constant()
  %one : int = prim::Constant[value=1]()
  %zero : int = prim::Constant[value=0]()
  %low : float = prim::Constant[value=0.]()
  %high : float = prim::Constant[value=6.]()
  %true : bool = prim::Constant[value=1]()
  %false : bool = prim::Constant[value=0]()
  %ones : int[] = prim::ListConstruct(%one, %one)
  %zeros : int[] = prim::ListConstruct(%zero, %zero)
)",
                                    body);
  auto graph = std::make_shared<Graph>();
  torch::jit::parseIR(text, graph.get());
  return graph;
}

std::string partitioned(const std::shared_ptr<Graph>& graph, const PartitionOptions& options = {}) {
  std::shared_ptr<Graph> result = graph;
  partition(result, options);
  return dump_relay(result);
}

const std::string kSeed = R"(
  %c0 : Tensor = aten::conv2d(%x, %w, %none, %ones, %zeros, %ones, %one)
  %r0 : Tensor = aten::relu(%c0)
  %p0 : Tensor = aten::max_pool2d(%r0, %ones, %ones, %zeros, %ones, %false)
  %c1 : Tensor = aten::conv2d(%p0, %w, %none, %ones, %zeros, %ones, %one)
  %r1 : Tensor = aten::relu(%c1)
  %a0 : Tensor = aten::adaptive_avg_pool2d(%r1, %ones)
  %a1 : Tensor = aten::adaptive_avg_pool2d(%a0, %ones)
  return (%a1)
)";

}  // namespace

TEST_CASE("the first convolution of the seed's graph has a pair on its input", "[jit]") {
  CHECK(partitioned(parse(kSeed)) == R"(%0 = annotation.cast_hint(%x, dtype="int8")
%1 = annotation.stop_fusion(%0)
%2 = conv2d(%1, %w)
%3 = relu(%2)
%4 = max_pool2d(%3)
%5 = annotation.cast_hint(%4, dtype="int8")
%6 = annotation.stop_fusion(%5)
%7 = conv2d(%6, %w)
%8 = relu(%7)
%9 = annotation.cast_hint(%8, dtype="int8")
%10 = annotation.stop_fusion(%9)
%11 = adaptive_avg_pool2d(%10)
%12 = adaptive_avg_pool2d(%11)
return %12
)");
}

TEST_CASE("skipped convolutions leave the seed's graph as it was", "[jit]") {
  PartitionOptions options;
  options.skip_conv_layers = {0, 1};
  const auto graph = parse(kSeed);
  CHECK(partitioned(graph, options) == dump_relay(graph));
}

TEST_CASE("the branches of an if have regions of their own", "[jit]") {
  const auto graph = parse(R"(
  %c : Tensor = aten::conv2d(%x, %w, %none, %ones, %zeros, %ones, %one)
  %y : Tensor = prim::If(%flag)
    block0():
      %r : Tensor = aten::relu(%c)
      -> (%r)
    block1():
      %d : Tensor = aten::conv2d(%c, %w, %none, %ones, %zeros, %ones, %one)
      -> (%d)
  return (%y)
)",
                           "%x : Tensor, %flag : bool");
  // The result of the first convolution is closed where the branches begin. In them it is plain,
  // and the relu starts no region; the second branch has one of its own.
  CHECK(partitioned(graph) == R"(%0 = annotation.cast_hint(%x, dtype="int8")
%1 = annotation.stop_fusion(%0)
%2 = conv2d(%1, %w)
%3 = annotation.cast_hint(%2, dtype="int8")
%4 = annotation.stop_fusion(%3)
%5 = If(%flag)
  block
    %6 = relu(%4)
    yield %6
  block
    %7 = conv2d(%4, %w)
    %8 = annotation.cast_hint(%7, dtype="int8")
    %9 = annotation.stop_fusion(%8)
    yield %9
return %5
)");
}

TEST_CASE("reading a size neither ends a region nor reads a pair", "[jit]") {
  const auto graph = parse(R"(
  %c : Tensor = aten::conv2d(%x, %w, %none, %ones, %zeros, %ones, %one)
  %n : int = aten::size(%c, %one)
  %s : Tensor = aten::mul(%c, %n)
  return (%s)
)");
  CHECK(partitioned(graph) == R"(%0 = annotation.cast_hint(%x, dtype="int8")
%1 = annotation.stop_fusion(%0)
%2 = conv2d(%1, %w)
%3 = size(%2)
%4 = multiply(%2, %3)
%5 = annotation.cast_hint(%4, dtype="int8")
%6 = annotation.stop_fusion(%5)
return %6
)");
}

TEST_CASE("a group's graph takes its entries and returns its exits", "[jit]") {
  auto graph = parse(kSeed);
  partition(graph);
  const auto found = groups(graph);
  REQUIRE(found.size() == 2);
  REQUIRE(found[0].entries.size() == 2);  // the pair and, as it is an input here, the weight
  CHECK(found[0].nodes.size() == 3);
  CHECK(dump_relay(extract(found[1])) ==
        "%0 = conv2d(%entry.1, %entry)\n%1 = relu(%0)\nreturn %1\n");
}

TEST_CASE("a report names every convolution and what became of it", "[jit]") {
  PartitionOptions options;
  options.skip_conv_layers = {1};
  auto graph = parse(kSeed);
  const PartitionReport report = partition(graph, options);
  CHECK(report.str() ==
        "number  kind    scope  status\n"
        "0       conv2d         quantized\n"
        "1       conv2d         skipped\n");
  CHECK(recorded_report(graph).str() == report.str());
}

TEST_CASE("stripping gives back the graph, and what fails changes nothing", "[jit]") {
  const auto original = parse(kSeed);
  const std::string before = original->toString();
  auto graph = original;
  partition(graph);
  CHECK(original->toString() == before);
  strip_annotations(graph);
  CHECK(graph->toString() == before);
  PartitionOptions options;
  options.skip_conv_layers = {2};
  CHECK_THROWS_AS(partition_inplace(graph, options), c10::ValueError);
  CHECK(graph->toString() == before);
  CHECK_THROWS_AS(recorded_report(graph), c10::Error);
}

TEST_CASE("an input without a name is called by its place", "[jit]") {
  auto graph = std::make_shared<Graph>();
  torch::jit::parseIR("graph(%0 : Tensor):\n  %1 : Tensor = aten::relu(%0)\n  return (%1)\n",
                      graph.get());
  CHECK(dump_relay(graph) == "%0 = relu(%input0)\nreturn %0\n");
}

TEST_CASE("a partitioned module is saved, loaded and run without Python", "[jit]") {
  torch::jit::Module module("Net");
  module.register_parameter("w", at::ones({2, 3, 1, 1}), false);
  module.register_attribute("training", c10::BoolType::get(), false);
  module.define("def forward(self, x):\n  return torch.relu(torch.conv2d(x, self.w))\n");
  torch::jit::Module frozen = prepare_module(module);
  const auto graph = frozen.get_method("forward").graph();
  CHECK(partition_inplace(graph).convolutions.size() == 1);
  std::stringstream file;
  frozen.save(file);
  torch::jit::Module back = torch::jit::load(file);
  CHECK(dump_relay(back.get_method("forward").graph()) == dump_relay(graph));
  const at::Tensor x = at::ones({1, 3, 2, 2});
  // Three channels of ones, weighted with one each.
  CHECK(at::equal(back.forward({x}).toTensor(), at::full({1, 2, 2, 2}, 3.0)));
}

TEST_CASE("a deep chain takes no recursion and little time", "[jit]") {
  std::string body;
  std::string value = "x";
  for (int i = 0; i < 20000; ++i) {
    const std::string next = c10::str("v", i, "a");
    body += c10::str("  %", next, " : Tensor = aten::", i % 2 == 0 ? "conv2d(%" : "relu(%", value,
                     i % 2 == 0 ? ", %w, %none, %ones, %zeros, %ones, %one)\n" : ")\n");
    value = next;
  }
  auto graph = parse(c10::str(body, "  return (%", value, ")\n"));
  CHECK(partition(graph).convolutions.size() == 10000);
  CHECK(groups(graph).size() == 10000);
}

}  // namespace horizon::jit
