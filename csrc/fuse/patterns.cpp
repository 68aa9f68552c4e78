#include "fuse/patterns.h"

#include <algorithm>
#include <array>

namespace horizon::fuse {
namespace {

struct Base {
  Kind kind;
  Kind batch_norm;
  const char* prefix;
  const char* suffix;
};

constexpr std::array<Base, 3> kBases{{
    {Kind::kConv2d, Kind::kBatchNorm2d, "Conv", "2d"},
    {Kind::kConvTranspose2d, Kind::kBatchNorm2d, "ConvTranspose", "2d"},
    {Kind::kLinear, Kind::kBatchNorm1d, "Linear", ""},
}};

// What may follow a base.
struct Sequence {
  bool batch_norm;
  bool add;
  Activation activation;
};

constexpr std::array<Sequence, 11> kSequences{{
    {true, false, Activation::kNone},
    {false, false, Activation::kReLU},
    {false, false, Activation::kReLU6},
    {true, false, Activation::kReLU},
    {true, false, Activation::kReLU6},
    {false, true, Activation::kNone},
    {false, true, Activation::kReLU},
    {false, true, Activation::kReLU6},
    {true, true, Activation::kNone},
    {true, true, Activation::kReLU},
    {true, true, Activation::kReLU6},
}};

const Base* find_base(Kind kind) {
  const auto* it = std::ranges::find(kBases, kind, &Base::kind);
  return it == kBases.end() ? nullptr : it;
}

std::vector<Pattern> make_patterns() {
  std::vector<Pattern> table;
  for (const Base& base : kBases) {
    for (const Sequence& sequence : kSequences) {
      std::vector<Kind> kinds{base.kind};
      if (sequence.batch_norm) kinds.push_back(base.batch_norm);
      if (sequence.add) kinds.push_back(Kind::kFloatFunctional);
      if (sequence.activation == Activation::kReLU) kinds.push_back(Kind::kReLU);
      if (sequence.activation == Activation::kReLU6) kinds.push_back(Kind::kReLU6);
      table.push_back(
          {std::move(kinds), {base.kind, sequence.batch_norm, sequence.add, sequence.activation}});
    }
  }
  return table;
}

// SyncBatchNorm serves every base, so it becomes the batch norm of the base it follows.
std::vector<Kind> normalized(std::vector<Kind> kinds) {
  const Base* base = kinds.empty() ? nullptr : find_base(kinds.front());
  if (base != nullptr) std::ranges::replace(kinds, Kind::kSyncBatchNorm, base->batch_norm);
  return kinds;
}

bool begins_with(const Pattern& pattern, const std::vector<Kind>& kinds, std::size_t length) {
  return pattern.kinds.size() >= length &&
         std::equal(kinds.begin(), kinds.begin() + static_cast<std::ptrdiff_t>(length),
                    pattern.kinds.begin());
}

}  // namespace

std::string class_name(const Variant& variant) {
  const Base* base = find_base(variant.base);
  std::string name = base->prefix;
  if (variant.batch_norm) name += "BN";
  if (variant.add) name += "Add";
  if (variant.activation == Activation::kReLU) name += "ReLU";
  if (variant.activation == Activation::kReLU6) name += "ReLU6";
  return name + base->suffix;
}

const std::vector<Pattern>& patterns() {
  static const std::vector<Pattern> table = make_patterns();
  return table;
}

const Pattern* match(const std::vector<Kind>& kinds) {
  const std::vector<Kind> wanted = normalized(kinds);
  const auto it = std::ranges::find(patterns(), wanted, &Pattern::kinds);
  return it == patterns().end() ? nullptr : &*it;
}

std::size_t matched_prefix(const std::vector<Kind>& kinds) {
  const std::vector<Kind> wanted = normalized(kinds);
  for (std::size_t length = wanted.size(); length > 0; --length) {
    const auto begins = [&](const Pattern& p) { return begins_with(p, wanted, length); };
    if (std::ranges::any_of(patterns(), begins)) return length;
  }
  return 0;
}

std::vector<Kind> continuations(const std::vector<Kind>& kinds, std::size_t length) {
  const std::vector<Kind> wanted = normalized(kinds);
  std::vector<Kind> next;
  for (const Pattern& pattern : patterns()) {
    if (pattern.kinds.size() <= length || !begins_with(pattern, wanted, length)) continue;
    const Kind kind = pattern.kinds[length];
    if (std::ranges::find(next, kind) == next.end()) next.push_back(kind);
  }
  return next;
}

}  // namespace horizon::fuse
