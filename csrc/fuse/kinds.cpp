#include "fuse/kinds.h"

#include <array>
#include <utility>

namespace horizon::fuse {
namespace {

constexpr std::array<std::pair<Kind, std::string_view>, 10> kNames{{
    {Kind::kConv2d, "Conv2d"},
    {Kind::kConvTranspose2d, "ConvTranspose2d"},
    {Kind::kLinear, "Linear"},
    {Kind::kBatchNorm1d, "BatchNorm1d"},
    {Kind::kBatchNorm2d, "BatchNorm2d"},
    {Kind::kSyncBatchNorm, "SyncBatchNorm"},
    {Kind::kFloatFunctional, "FloatFunctional"},
    {Kind::kReLU, "ReLU"},
    {Kind::kReLU6, "ReLU6"},
    {Kind::kOther, "Other"},
}};

}  // namespace

std::string_view kind_name(Kind kind) {
  for (const auto& [value, name] : kNames) {
    if (value == kind) return name;
  }
  return "Other";
}

Kind kind_from_name(std::string_view name) {
  for (const auto& [value, text] : kNames) {
    if (text == name) return value;
  }
  return Kind::kOther;
}

}  // namespace horizon::fuse
