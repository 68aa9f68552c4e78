#include <string>
#include <vector>

#include "catch.h"
#include "fuse/discover.h"

namespace fuse = horizon::fuse;
using fuse::Kind;
using Names = std::vector<std::string>;

namespace {

// A flat model and a run of it, written down by hand.
class Run {
 public:
  Run() {
    tree.nodes.emplace_back();
    tree.nodes[0].class_name = "Net";
    input = value();
  }

  int module(const std::string& name, Kind kind) {
    const int id = static_cast<int>(tree.nodes.size());
    fuse::Node node;
    node.kind = kind;
    node.class_name = kind == Kind::kOther ? name : std::string(fuse::kind_name(kind));
    node.parent = 0;
    node.type_id = id;
    tree.nodes.push_back(node);
    tree.nodes[0].child_names.push_back(name);
    tree.nodes[0].children.push_back(id);
    return id;
  }

  int value(int storage = fuse::kNoIndex) {
    const int id = static_cast<int>(record.values.size());
    record.values.push_back({storage == fuse::kNoIndex ? id : storage, 4});
    return id;
  }

  // Runs a module, or a function if `node` is kNoIndex; returns the value it gives.
  int call(int node, const std::vector<int>& inputs, const std::string& op = "") {
    const int result = value();
    record.calls.push_back({node, op, 0, inputs, {result}, {}, false});
    return result;
  }

  int function(const std::string& op, const std::vector<int>& inputs) {
    return call(fuse::kNoIndex, inputs, op);
  }

  void read(const std::string& op, int of) {
    record.calls.push_back({fuse::kNoIndex, op, 0, {of}, {}, {}, true});
  }

  std::vector<Names> groups(const fuse::Options& options = {}) {
    found = fuse::find_groups(tree, record, options);
    std::vector<Names> names;
    for (const auto& group : found.groups) names.push_back(group.names);
    return names;
  }

  std::string reason(const std::string& name) const {
    for (const auto& row : found.left) {
      if (row.name == name) return row.reason;
    }
    return "not left alone";
  }

  std::string refusal(const std::vector<int>& members) {
    fuse::Group group;
    group.members = members;
    for (const int id : members) group.names.push_back(tree.nodes[0].child_names[at(id) - 1]);
    warnings.clear();
    try {
      fuse::check_groups(tree, record, {group}, warnings);
    } catch (const fuse::PlanError& error) {
      return error.what();
    }
    return "";
  }

  static std::size_t at(int id) { return static_cast<std::size_t>(id); }

  fuse::Tree tree;
  fuse::Record record;
  fuse::Discovery found;
  Names warnings;
  int input = 0;
};

void check_mentions(const std::string& text, const std::string& part) {
  INFO(text);
  CHECK(text.find(part) != std::string::npos);
}

// conv, bn, relu, add and a second convolution
struct Block : Run {
  int conv = module("conv", Kind::kConv2d);
  int bn = module("bn", Kind::kBatchNorm2d);
  int relu = module("relu", Kind::kReLU);
  int add = module("add", Kind::kFloatFunctional);
  int conv2 = module("conv2", Kind::kConv2d);
  int bn2 = module("bn2", Kind::kBatchNorm2d);
};

}  // namespace

TEST_CASE("the longest pattern that a run shows to be safe is found", "[fuse]") {
  Block net;
  const int y = net.call(net.bn, {net.call(net.conv, {net.input})});
  SECTION("up to the activation") {
    net.record.results = {net.call(net.relu, {y})};
    CHECK(net.groups() == std::vector<Names>{{"conv", "bn", "relu"}});
    CHECK(fuse::class_name(net.found.groups[0].variant) == "ConvBNReLU2d");
  }
  SECTION("through an add, in either operand order") {
    const bool first = GENERATE(true, false);
    const std::vector<int> operands =
        first ? std::vector<int>{y, net.input} : std::vector<int>{net.input, y};
    net.record.results = {net.call(net.relu, {net.call(net.add, operands, "add")})};
    CHECK(net.groups() == std::vector<Names>{{"conv", "bn", "add", "relu"}});
    CHECK(net.found.groups[0].slot == 2);
  }
  SECTION("an add of a value to itself") {
    net.record.results = {net.call(net.add, {y, y}, "add")};
    CHECK(net.groups() == std::vector<Names>{{"conv", "bn", "add"}});
  }
  SECTION("not through another method of the FloatFunctional") {
    net.record.results = {net.call(net.add, {y, net.input}, "mul")};
    CHECK(net.groups() == std::vector<Names>{{"conv", "bn"}});
    CHECK(net.reason("add") == "not left alone");
  }
}

TEST_CASE("of two convolutions that meet in an add, the one called last takes it", "[fuse]") {
  Block net;
  const int y = net.call(net.bn, {net.call(net.conv, {net.input})});
  const int z = net.call(net.bn2, {net.call(net.conv2, {net.input})});
  const bool swapped = GENERATE(false, true);
  net.record.results = {
      net.call(net.add, swapped ? std::vector<int>{z, y} : std::vector<int>{y, z}, "add")};
  CHECK(net.groups() == std::vector<Names>{{"conv", "bn"}, {"conv2", "bn2", "add"}});
}

TEST_CASE("a shared head is one group at several calls", "[fuse]") {
  Block net;
  for (int level = 0; level < 5; ++level) {
    const int y = net.call(net.bn, {net.call(net.conv, {net.value()})});
    net.record.results.push_back(net.call(net.relu, {y}));
  }
  CHECK(net.groups() == std::vector<Names>{{"conv", "bn", "relu"}});
  CHECK(net.refusal({net.conv, net.bn, net.relu}).empty());
}

TEST_CASE("a batch norm called in another order than its convolution is refused", "[fuse]") {
  Block net;
  const int a = net.call(net.conv, {net.value()});
  const int b = net.call(net.conv, {net.value()});
  net.record.results = {net.call(net.bn, {b}), net.call(net.bn, {a})};
  check_mentions(net.refusal({net.conv, net.bn}), "called in another order");
}

TEST_CASE("what makes a group unsafe is said with its callers", "[fuse]") {
  Block net;
  const int y = net.call(net.conv, {net.input});
  const std::vector<int> pair{net.conv, net.bn};
  SECTION("a second user of the result") {
    net.record.results = {net.function("+", {net.call(net.bn, {y}), y})};
    check_mentions(net.refusal(pair),
                   "its result is used 2 times: 'bn' (BatchNorm2d) and + in the model's forward");
    CHECK(net.groups().empty());
    check_mentions(net.reason("conv"), "must have one user");
  }
  SECTION("the result leaves the model") {
    net.record.results = {net.call(net.bn, {y}), y};
    check_mentions(net.refusal(pair), "'bn' (BatchNorm2d) and the model's output");
  }
  SECTION("the result is kept") {
    net.record.results = {net.call(net.bn, {y})};
    net.record.kept = {y};
    check_mentions(net.refusal(pair), "an attribute of a module that keeps it");
  }
  SECTION("the base is called once more, bare") {
    net.record.results = {net.call(net.bn, {y}),
                          net.function("mean", {net.call(net.conv, {net.value()})})};
    check_mentions(net.refusal(pair),
                   "'conv' is called 2 times, and at call 2 its result goes to "
                   "mean in the model's forward");
  }
  SECTION("a member is called elsewhere") {
    net.record.results = {net.call(net.bn, {y}), net.call(net.bn, {net.function("pool", {y})})};
    check_mentions(net.refusal(pair), "'bn' is called 2 times");
  }
  SECTION("a shared activation shortens the groups, with a remedy") {
    const int a = net.call(net.relu, {net.call(net.bn, {y})});
    net.record.results = {net.call(net.relu, {net.call(net.bn2, {net.call(net.conv2, {a})})})};
    check_mentions(net.refusal({net.conv, net.bn, net.relu}), "an activation module of its own");
    CHECK(net.groups() == std::vector<Names>{{"conv", "bn"}, {"conv2", "bn2"}});
    check_mentions(net.reason("relu"), "called 2 times");
  }
  SECTION("never called: only a warning") {
    CHECK(net.refusal({net.conv2, net.bn2}).empty());
    REQUIRE(net.warnings.size() == 1);
    check_mentions(net.warnings[0], "['conv2', 'bn2'] are never called");
  }
}

TEST_CASE("a read of the shape is fine in a group without an add only", "[fuse]") {
  Block net;
  const int y = net.call(net.conv, {net.input});
  net.read("shape", y);
  SECTION("without") {
    net.record.results = {net.call(net.bn, {y})};
    CHECK(net.groups() == std::vector<Names>{{"conv", "bn"}});
  }
  SECTION("with") {
    net.record.results = {net.call(net.add, {y, net.input}, "add")};
    CHECK(net.groups().empty());
    check_mentions(net.reason("add"), "shape in the model's forward");
  }
}

TEST_CASE("nothing may change the base's input before the add", "[fuse]") {
  Block net;
  const int y = net.call(net.conv, {net.input});
  net.function("add_", {net.input});
  net.record.calls.back().changed = {net.record.values[0].storage};
  net.record.results = {net.call(net.add, {y, net.value()}, "add")};
  CHECK(net.groups().empty());
  check_mentions(net.reason("add"), "the input of 'conv' is changed in place before 'add'");
}

TEST_CASE("functions in a module's place are told with the module to use", "[fuse]") {
  struct Row {
    const char* op;
    const char* remedy;
  };
  const Row row = GENERATE(Row{"+", "FloatFunctional"}, Row{"relu", "nn.ReLU module"},
                           Row{"hardtanh", "nn.ReLU6 module"}, Row{"batch_norm", "batch norm"});
  Block net;
  net.record.results = {net.function(row.op, {net.call(net.conv, {net.input})})};
  CHECK(net.groups().empty());
  check_mentions(net.reason("conv"), row.remedy);
}

TEST_CASE("what the planner refuses is left alone with its reason", "[fuse]") {
  Block net;
  net.record.results = {net.call(net.bn, {net.call(net.conv, {net.input})})};
  net.tree.nodes[Run::at(net.conv)].has_forward_hooks = true;
  CHECK(net.groups().empty());
  check_mentions(net.reason("bn"), "hooks on inner members of ['conv', 'bn']");
}

TEST_CASE("sequences of the user's come with the table's", "[fuse]") {
  Block net;
  const int silu = net.module("silu", Kind::kOther);
  net.record.results = {net.call(silu, {net.call(net.bn, {net.call(net.conv, {net.input})})})};
  fuse::Options options;
  options.custom_patterns = {{net.conv, net.bn, silu}};
  CHECK(net.groups(options) == std::vector<Names>{{"conv", "bn", "silu"}});
  CHECK(net.found.groups[0].custom == 0);
  CHECK(net.groups() == std::vector<Names>{{"conv", "bn"}});
}

TEST_CASE("a linear layer takes a batch norm for two dimensions only", "[fuse]") {
  Run net;
  const int fc = net.module("fc", Kind::kLinear);
  const int bn = net.module("bn", Kind::kBatchNorm1d);
  const int y = net.call(fc, {net.input});
  net.record.results = {net.call(bn, {y})};
  const int dimensions = GENERATE(2, 3, fuse::kNoIndex);
  net.record.values[Run::at(y)].dimensions = dimensions;
  CHECK(net.groups().size() == (dimensions == 3 ? 0 : 1));
}

TEST_CASE("a record that does not fit the tree is refused", "[fuse]") {
  Block net;
  net.record.calls.push_back({99, "", 0, {}, {}, {}, false});
  CHECK_THROWS_AS(net.groups(), fuse::PlanError);
  net.record.calls.back() = {net.conv, "", 0, {42}, {}, {}, false};
  CHECK_THROWS_AS(net.groups(), fuse::PlanError);
}
