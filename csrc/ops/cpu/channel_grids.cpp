#include "ops/cpu/channel_grids.h"

namespace horizon::cpu {

ChannelTable::ChannelTable(const float* scale, const int32_t* zero_point, int64_t outer,
                           int64_t channels, int64_t inner, int32_t lo, int32_t hi)
    : channels_(channels), inner_(inner), lo_(lo), hi_(hi) {
  // Short runs of a channel that come around often are written out once: the kernels then read
  // parameters as they read elements.
  const bool expand = inner > 1 && inner < kBlock && outer >= 4;
  const int64_t repeat = expand ? inner : 1;
  if (expand) {
    channels_ = channels * inner;
    inner_ = 1;
  }
  const auto size = static_cast<size_t>(channels_ + kBlock);
  scale_.reserve(size);
  inv_scale_.reserve(size);
  zero_point_.reserve(size);
  for (int64_t c = 0; scale_.size() < size; c = c + 1 == channels ? 0 : c + 1) {
    for (int64_t i = 0; i < repeat && scale_.size() < size; ++i) {
      scale_.push_back(scale[c]);
      inv_scale_.push_back(1.0F / scale[c]);
      zero_point_.push_back(zero_point == nullptr ? 0 : zero_point[c]);
    }
  }
}

ChannelGrids ChannelTable::grids() const {
  return {scale_.data(), inv_scale_.data(), zero_point_.data(), lo_, hi_, channels_, inner_};
}

}  // namespace horizon::cpu
