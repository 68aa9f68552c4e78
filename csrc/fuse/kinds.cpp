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

bool is_base(Kind kind) {
  return kind == Kind::kConv2d || kind == Kind::kConvTranspose2d || kind == Kind::kLinear;
}

bool is_batch_norm(Kind kind) {
  return kind == Kind::kBatchNorm1d || kind == Kind::kBatchNorm2d || kind == Kind::kSyncBatchNorm;
}

bool is_activation(Kind kind) { return kind == Kind::kReLU || kind == Kind::kReLU6; }

}  // namespace horizon::fuse
