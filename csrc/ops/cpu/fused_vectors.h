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
  const int64_t repeats = rows.per_row ? 1 : rows.length / rows.channels;
  std::vector<T> result;
  result.reserve(values.size() * static_cast<size_t>(repeats));
  for (int64_t i = 0; i < repeats; ++i) result.insert(result.end(), values.begin(), values.end());
  return result;
}

}  // namespace horizon::cpu
