#pragma once

#include <cstdint>
#include <vector>

#include "ops/cpu/kernels/fake_quantize.h"

namespace horizon::cpu {

/// Owns the arrays of a `ChannelGrids`, with the periodic continuation that kernels read.
class ChannelTable {
 public:
  /// For `outer` times [channels, inner] elements. `scale` and `zero_point` have `channels` > 0
  /// entries; a null `zero_point` means 0.
  ChannelTable(const float* scale, const int32_t* zero_point, int64_t outer, int64_t channels,
               int64_t inner, int32_t lo, int32_t hi);

  ChannelGrids grids() const;

 private:
  std::vector<float> scale_, inv_scale_;
  std::vector<int32_t> zero_point_;
  int64_t channels_, inner_;
  int32_t lo_, hi_;
};

}  // namespace horizon::cpu
