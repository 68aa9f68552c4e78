#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "ops/cpu/kernels/fused.h"

namespace horizon::cpu {

/// The entries of a float vector of `size` entries in double; `otherwise` where there is none.
std::vector<double> read_vector(const std::optional<at::Tensor>& tensor, int64_t size,
                                double otherwise);

/// Writes `values` into a float vector, rounding to its dtype; counts as an in-place change.
void write_vector(const at::Tensor& tensor, const std::vector<double>& values);

/// A fresh float vector in `type`.
at::Tensor make_vector(const std::vector<double>& values, at::ScalarType type);

/// Per-channel values as the kernels read them: per channel, or tiled to a row.
template <typename T>
std::vector<T> coefficients(const std::vector<double>& values, const FusedRows& rows) {
  const int64_t size = rows.per_row ? rows.channels : rows.length;
  std::vector<T> result(static_cast<size_t>(size));
  for (int64_t i = 0; i < size; ++i) {
    result[static_cast<size_t>(i)] = static_cast<T>(values[static_cast<size_t>(i % rows.channels)]);
  }
  return result;
}

}  // namespace horizon::cpu
