#include <string>
#include <vector>

#include "catch.h"
#include "fuse/planner.h"
#include "fuse/text.h"

namespace fuse = horizon::fuse;
using fuse::Action;
using fuse::Kind;
using Lists = std::vector<std::vector<std::string>>;

namespace {

int add_node(fuse::Tree& tree, int parent, const std::string& name, Kind kind,
             const std::string& class_name = "") {
  const int id = static_cast<int>(tree.nodes.size());
  fuse::Node node;
  node.kind = kind;
  node.class_name = class_name.empty() ? std::string(fuse::kind_name(kind)) : class_name;
  node.parent = parent;
  tree.nodes.push_back(node);
  if (parent != fuse::kNoIndex) {
    auto& holder = tree.nodes[static_cast<std::size_t>(parent)];
    holder.child_names.push_back(name);
    holder.children.push_back(id);
  }
  return id;
}

// Net(block: Block(conv, bn, relu), tail: Sequential(0: Linear, 1: ReLU6), add)
fuse::Tree small_net() {
  fuse::Tree tree;
  add_node(tree, fuse::kNoIndex, "", Kind::kOther, "Net");
  const int block = add_node(tree, 0, "block", Kind::kOther, "Block");
  add_node(tree, block, "conv", Kind::kConv2d);
  add_node(tree, block, "bn", Kind::kBatchNorm2d);
  add_node(tree, block, "relu", Kind::kReLU);
  const int tail = add_node(tree, 0, "tail", Kind::kOther, "Sequential");
  add_node(tree, tail, "0", Kind::kLinear);
  add_node(tree, tail, "1", Kind::kReLU6);
  add_node(tree, 0, "add", Kind::kFloatFunctional);
  return tree;
}

fuse::Node& at(fuse::Tree& tree, int id) { return tree.nodes[static_cast<std::size_t>(id)]; }

std::string refusal(const fuse::Tree& tree, const Lists& lists, fuse::ErrorKind kind,
                    const fuse::Options& options = {}) {
  try {
    fuse::plan(tree, lists, options);
  } catch (const fuse::PlanError& error) {
    CHECK(error.kind() == kind);
    return error.what();
  }
  return "nothing was refused";
}

void check_mentions(const std::string& text, const std::string& part) {
  INFO(text);
  CHECK(text.find(part) != std::string::npos);
}

constexpr auto kValue = fuse::ErrorKind::kValue;

}  // namespace

TEST_CASE("a plan names members, class, slot and what becomes of the batch norm", "[fuse]") {
  const fuse::Tree tree = small_net();
  const fuse::Plan plan =
      fuse::plan(tree, {{"block.conv", "block.bn", "add", "block.relu"}, {"tail.0", "tail.1"}}, {});
  REQUIRE(plan.groups.size() == 2);
  CHECK(fuse::class_name(plan.groups[0].variant) == "ConvBNAddReLU2d");
  CHECK(plan.groups[0].slot == 2);
  CHECK(plan.groups[0].action == Action::kLive);
  CHECK(plan.groups[0].members == std::vector<int>{2, 3, 8, 4});
  CHECK(fuse::class_name(plan.groups[1].variant) == "LinearReLU6");
  CHECK(plan.groups[1].slot == 0);
  CHECK(plan.groups[1].action == Action::kNoBatchNorm);
  CHECK(plan.warnings.empty());
}

TEST_CASE("the mode and the training flags decide between live, frozen and folded", "[fuse]") {
  using fuse::BatchNormMode;
  struct Row {
    BatchNormMode mode;
    bool training, bn_training;
    Action action;
  };
  const Row row = GENERATE(Row{BatchNormMode::kAuto, true, true, Action::kLive},
                           Row{BatchNormMode::kAuto, false, false, Action::kFold},
                           Row{BatchNormMode::kAuto, true, false, Action::kFrozen},
                           Row{BatchNormMode::kFuse, true, true, Action::kFold},
                           Row{BatchNormMode::kFuse, true, false, Action::kFold},
                           Row{BatchNormMode::kFuse, false, false, Action::kFold},
                           Row{BatchNormMode::kKeep, true, true, Action::kLive},
                           Row{BatchNormMode::kKeep, true, false, Action::kFrozen},
                           Row{BatchNormMode::kKeep, false, false, Action::kLive});
  fuse::Tree tree = small_net();
  at(tree, 2).training = at(tree, 4).training = row.training;
  at(tree, 3).training = row.bn_training;
  fuse::Options options;
  options.mode = row.mode;
  const fuse::Plan plan = fuse::plan(tree, {{"block.conv", "block.bn", "block.relu"}}, options);
  CHECK(plan.groups[0].action == row.action);
}

TEST_CASE("each refusal says which name, under which parent, and what would work", "[fuse]") {
  fuse::Tree tree = small_net();
  SECTION("a wrong name lists the parent's children") {
    CHECK(refusal(tree, {{"block.conv", "block.act"}}, kValue) ==
          "fuse_modules: 'block.act' must name a module, but 'block' (Block) has no child 'act'; "
          "its children are conv, bn, relu. Functional ops (F.relu, +) have no name and cannot be "
          "fused: use modules (ReLU, FloatFunctional)");
  }
  SECTION("a negative subscript is told apart") {
    check_mentions(refusal(tree, {{"tail.0", "tail.-1"}}, kValue),
                   "negative subscripts are not supported: the last child of 'tail' "
                   "(Sequential) is '1'");
  }
  SECTION("nothing can follow an activation") {
    CHECK(refusal(tree, {{"block.conv", "block.relu", "block.bn"}},
                  fuse::ErrorKind::kNotImplemented) ==
          "fuse_modules: ['block.conv', 'block.relu', 'block.bn'] are (Conv2d, ReLU, "
          "BatchNorm2d), a sequence that cannot be fused: nothing can follow (Conv2d, ReLU)");
  }
  SECTION("a group begins with a base") {
    check_mentions(refusal(tree, {{"block.bn", "block.relu"}}, fuse::ErrorKind::kNotImplemented),
                   "a group begins with Conv2d, ConvTranspose2d or Linear, but 'block.bn' is "
                   "a BatchNorm2d");
  }
  SECTION("a subclass is refused by its class") {
    at(tree, 2).kind = Kind::kOther;
    at(tree, 2).derived_from = Kind::kConv2d;
    at(tree, 2).class_name = "PaddedConv";
    check_mentions(refusal(tree, {{"block.conv", "block.bn"}}, fuse::ErrorKind::kType),
                   "'block.conv' is a PaddedConv, a subclass of Conv2d");
  }
  SECTION("a wrapper is named with the module inside it") {
    at(tree, 0).inner = "module";
    at(tree, 0).class_name = "DataParallel";
    check_mentions(refusal(tree, {{"block.conv", "block.bn"}}, kValue),
                   "the model is wrapped in DataParallel: pass the inner module, "
                   "model.module");
  }
  SECTION("mixed modes list each name and its mode") {
    at(tree, 2).training = false;
    check_mentions(refusal(tree, {{"block.conv", "block.bn", "block.relu"}}, kValue),
                   "block.conv: eval, block.bn: train, block.relu: train");
  }
  SECTION("statistics are needed for a fold") {
    for (auto& node : tree.nodes) node.training = false;
    at(tree, 3).has_statistics = false;
    check_mentions(refusal(tree, {{"block.conv", "block.bn"}}, kValue),
                   "'block.bn' must have running statistics to be folded");
  }
  SECTION("channels must agree") {
    at(tree, 2).channels = 4;
    at(tree, 3).channels = 8;
    check_mentions(refusal(tree, {{"block.conv", "block.bn"}}, kValue),
                   "'block.bn' must normalize the 4 channels of 'block.conv', got 8");
  }
  SECTION("lists must name two or more modules") {
    check_mentions(refusal(tree, {}, kValue), "at least one list of names");
    check_mentions(refusal(tree, {{}}, kValue), "got an empty list");
    check_mentions(refusal(tree, {{"block.conv"}}, kValue), "got only ['block.conv']");
    check_mentions(refusal(tree, {{"block.conv", "block.conv"}}, kValue),
                   "'block.conv' stands there twice");
  }
}

TEST_CASE("a module under two names is one node", "[fuse]") {
  fuse::Tree tree = small_net();
  at(tree, 0).child_names.emplace_back("alias");
  at(tree, 0).children.push_back(4);
  CHECK(fuse::plan(tree, {{"block.conv", "block.bn", "alias"}}, {}).groups[0].members ==
        std::vector<int>{2, 3, 4});
  check_mentions(refusal(tree, {{"block.conv", "block.relu", "alias"}}, kValue),
                 "'block.relu' and 'alias' are the same");
  check_mentions(refusal(tree, {{"block.conv", "block.relu"}, {"tail.0", "alias"}}, kValue),
                 "'alias' of ['tail.0', 'alias'] was consumed by an earlier list of "
                 "this call, ['block.conv', 'block.relu']");
}

TEST_CASE("the very list that was fused before is a warning, any other a refusal", "[fuse]") {
  fuse::Tree tree = small_net();
  SECTION("in an earlier call") {
    tree.groups = {{"conv", "bn"}};
    at(tree, 2).group = at(tree, 3).group = 0;
    at(tree, 2).position = 0;
    at(tree, 3).position = 1;
    const fuse::Plan plan = fuse::plan(tree, {{"block.conv", "block.bn"}}, {});
    CHECK(plan.groups.empty());
    REQUIRE(plan.warnings.size() == 1);
    CHECK(plan.warnings[0] ==
          "fuse_modules: ['block.conv', 'block.bn'] is fused already: this list changes nothing");
    check_mentions(refusal(tree, {{"block.conv", "block.relu"}}, kValue),
                   "was consumed by an earlier call, as part of ['conv', 'bn']");
    check_mentions(refusal(tree, {{"block.bn", "block.conv"}}, kValue),
                   "was consumed by an earlier call");
  }
  SECTION("in the same call") {
    const fuse::Plan plan = fuse::plan(tree, {{"tail.0", "tail.1"}, {"tail.0", "tail.1"}}, {});
    CHECK(plan.groups.size() == 1);
    CHECK(plan.warnings.size() == 1);
  }
}

TEST_CASE("hooks on inner members are refused, or dropped with a warning", "[fuse]") {
  fuse::Tree tree = small_net();
  at(tree, 2).has_pre_hooks = true;
  at(tree, 4).has_forward_hooks = true;
  const Lists lists{{"block.conv", "block.bn", "block.relu"}};
  CHECK(fuse::plan(tree, lists, {}).warnings.empty());
  at(tree, 3).has_forward_hooks = true;
  check_mentions(refusal(tree, lists, kValue), "'block.bn' (forward hook)");
  fuse::Options options;
  options.allow_inner_hooks = true;
  CHECK(fuse::plan(tree, lists, options).warnings.size() == 1);
}

TEST_CASE("members must agree on their qconfig", "[fuse]") {
  fuse::Tree tree = small_net();
  const Lists lists{{"block.conv", "block.bn", "block.relu"}};
  SECTION("none set: the group inherits") {
    CHECK(fuse::plan(tree, lists, {}).groups[0].qconfig == fuse::kQconfigUnset);
  }
  SECTION("one set: the group takes it") {
    at(tree, 2).qconfig = 1;
    CHECK(fuse::plan(tree, lists, {}).groups[0].qconfig == 1);
  }
  SECTION("two that differ") {
    at(tree, 2).qconfig = 1;
    at(tree, 4).qconfig = 2;
    check_mentions(refusal(tree, lists, kValue),
                   "block.conv: setting 1, block.bn: inherited, block.relu: setting 2");
  }
  SECTION("left float, while another member inherits a setting") {
    at(tree, 2).qconfig = fuse::kQconfigNone;
    check_mentions(refusal(tree, lists, kValue), "block.conv: None (left float)");
    at(tree, 1).qconfig = fuse::kQconfigNone;
    CHECK(fuse::plan(tree, lists, {}).groups[0].qconfig == fuse::kQconfigNone);
  }
}

TEST_CASE("custom sequences of exact classes come before the table", "[fuse]") {
  fuse::Tree tree = small_net();
  for (std::size_t i = 0; i < tree.nodes.size(); ++i) tree.nodes[i].type_id = static_cast<int>(i);
  fuse::Options options;
  options.custom_patterns = {{6, 7}};
  const fuse::Plan plan =
      fuse::plan(tree, {{"tail.0", "tail.1"}, {"block.conv", "block.bn"}}, options);
  CHECK(plan.groups[0].custom == 0);
  CHECK(plan.groups[1].custom == fuse::kNoIndex);
}

TEST_CASE("names are printed on one line, and long ones are cut between characters", "[fuse]") {
  CHECK(fuse::quoted("layer1.0") == "'layer1.0'");
  CHECK(fuse::printable(std::string("a\0b\n\x7f", 5)) == "a\\x00b\\x0a\\x7f");
  CHECK(fuse::printable(std::string(200, 'x')) == std::string(200, 'x'));
  // 199 letters leave one byte, in which the two of "é" do not fit.
  const std::string cut = fuse::printable(std::string(199, 'x') + "éé");
  CHECK(cut == std::string(199, 'x') + "… (203 bytes)");
  CHECK(fuse::list_text({"a", "b"}) == "['a', 'b']");
  const std::string many = fuse::list_text(std::vector<std::string>(1000, "m"));
  CHECK(many.size() < 200);
  check_mentions(many, "'m', … (1000 in all)]");
}

TEST_CASE("an obstacle is told of a module of any kind", "[fuse]") {
  fuse::Tree tree = small_net();
  at(tree, 2).kind = Kind::kOther;
  at(tree, 2).obstacle = "is a TorchScript module";
  const auto text = refusal(tree, {{"block.conv", "block.bn"}}, fuse::ErrorKind::kValue);
  check_mentions(text, "'block.conv' is a TorchScript module");
}
