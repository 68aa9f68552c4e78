#include <set>
#include <string>
#include <vector>

#include "catch.h"
#include "fuse/patterns.h"

using horizon::fuse::Activation;
using horizon::fuse::Kind;
using horizon::fuse::Pattern;

namespace fuse = horizon::fuse;

TEST_CASE("the table holds eleven sequences for each of three bases", "[fuse]") {
  REQUIRE(fuse::patterns().size() == 33);
  std::set<std::vector<Kind>> sequences;
  std::set<std::string> names;
  for (const Pattern& pattern : fuse::patterns()) {
    sequences.insert(pattern.kinds);
    names.insert(fuse::class_name(pattern.variant));
    REQUIRE(pattern.kinds.front() == pattern.variant.base);
  }
  CHECK(sequences.size() == 33);
  CHECK(names.size() == 33);
}

TEST_CASE("class names read base, batch norm, add, activation", "[fuse]") {
  CHECK(fuse::class_name({Kind::kConv2d, true, true, Activation::kReLU6}) == "ConvBNAddReLU62d");
  CHECK(fuse::class_name({Kind::kConvTranspose2d, true, false, Activation::kNone}) ==
        "ConvTransposeBN2d");
  CHECK(fuse::class_name({Kind::kLinear, false, false, Activation::kReLU}) == "LinearReLU");
}

TEST_CASE("a synchronized batch norm counts as the batch norm of its base", "[fuse]") {
  const auto* conv = fuse::match({Kind::kConv2d, Kind::kSyncBatchNorm, Kind::kReLU6});
  REQUIRE(conv != nullptr);
  CHECK(fuse::class_name(conv->variant) == "ConvBNReLU62d");
  const auto* linear = fuse::match({Kind::kLinear, Kind::kSyncBatchNorm});
  REQUIRE(linear != nullptr);
  CHECK(fuse::class_name(linear->variant) == "LinearBN");
  CHECK(fuse::match({Kind::kSyncBatchNorm, Kind::kReLU}) == nullptr);
}

TEST_CASE("a batch norm of another dimension does not match", "[fuse]") {
  CHECK(fuse::match({Kind::kConv2d, Kind::kBatchNorm1d}) == nullptr);
  CHECK(fuse::match({Kind::kLinear, Kind::kBatchNorm2d}) == nullptr);
  CHECK(fuse::match({}) == nullptr);
}

TEST_CASE("the longest matched prefix and what can follow it are known", "[fuse]") {
  using Kinds = std::vector<Kind>;
  const Kinds kinds{Kind::kConv2d, Kind::kBatchNorm2d, Kind::kOther};
  REQUIRE(fuse::matched_prefix(kinds) == 2);
  const Kinds after_norm{Kind::kReLU, Kind::kReLU6, Kind::kFloatFunctional};
  CHECK(fuse::continuations(kinds, 2) == after_norm);
  CHECK(fuse::continuations({Kind::kConv2d, Kind::kReLU}, 2).empty());
  CHECK(fuse::matched_prefix({Kind::kOther, Kind::kReLU}) == 0);
  const Kinds bases{Kind::kConv2d, Kind::kConvTranspose2d, Kind::kLinear};
  CHECK(fuse::continuations({Kind::kOther}, 0) == bases);
}
