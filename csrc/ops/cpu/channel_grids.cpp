#include "ops/cpu/channel_grids.h"

namespace horizon::cpu {

ChannelTable::ChannelTable(const float* scale, const int32_t* zero_point, int64_t channels,
                           int64_t inner, int32_t lo, int32_t hi)
    : channels_(channels), inner_(inner), lo_(lo), hi_(hi) {
  const auto size = static_cast<size_t>(channels + kBlock);
  scale_.resize(size);
  inv_scale_.resize(size);
  zero_point_.resize(size);
  for (size_t i = 0; i < size; ++i) {
    const auto c = static_cast<int64_t>(i) % channels;
    scale_[i] = scale[c];
    inv_scale_[i] = 1.0F / scale[c];
    zero_point_[i] = zero_point == nullptr ? 0 : zero_point[c];
  }
}

ChannelGrids ChannelTable::grids() const {
  return {scale_.data(), inv_scale_.data(), zero_point_.data(), lo_, hi_, channels_, inner_};
}

}  // namespace horizon::cpu
