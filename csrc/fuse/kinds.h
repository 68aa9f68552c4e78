#pragma once

#include <string_view>

namespace horizon::fuse {

/// What a module is to the planner. Anything that is not exactly one of these is kOther.
enum class Kind {
  kConv2d,
  kConvTranspose2d,
  kLinear,
  kBatchNorm1d,
  kBatchNorm2d,
  kSyncBatchNorm,
  kFloatFunctional,
  kReLU,
  kReLU6,
  kOther,
};

/// "Conv2d", "BatchNorm2d", …; "Other" for kOther.
std::string_view kind_name(Kind kind);

/// The inverse of kind_name; kOther for an unknown name.
Kind kind_from_name(std::string_view name);

bool is_base(Kind kind);
bool is_batch_norm(Kind kind);
bool is_activation(Kind kind);

}  // namespace horizon::fuse
