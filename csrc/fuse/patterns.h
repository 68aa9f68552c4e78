#pragma once

#include <string>
#include <vector>

#include "fuse/kinds.h"

namespace horizon::fuse {

/// The activation of a fused module; the values are those of the operators' `activation` argument.
enum class Activation { kNone = 0, kReLU = 1, kReLU6 = 2 };

/// What a fused module consists of.
struct Variant {
  Kind base = Kind::kConv2d;
  bool batch_norm = false;
  bool add = false;
  Activation activation = Activation::kNone;

  bool operator==(const Variant&) const = default;
};

/// The name of the fused class, the same in every front end: "ConvBNAddReLU62d".
std::string class_name(const Variant& variant);

/// A sequence of modules that fuse into one.
struct Pattern {
  std::vector<Kind> kinds;
  Variant variant;
};

/// The pattern table: every sequence of every base. A batch norm stands there as the one of its
/// base; SyncBatchNorm counts as that one.
const std::vector<Pattern>& patterns();

/// The pattern that `kinds` matches, or nullptr.
const Pattern* match(const std::vector<Kind>& kinds);

/// How many of `kinds`, from the first on, begin some pattern.
std::size_t matched_prefix(const std::vector<Kind>& kinds);

/// The kinds that can stand behind the first `length` of `kinds`, which begin some pattern.
std::vector<Kind> continuations(const std::vector<Kind>& kinds, std::size_t length);

}  // namespace horizon::fuse
