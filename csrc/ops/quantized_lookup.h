#pragma once

#include <ATen/core/Tensor.h>

namespace horizon::ops {

/// table[q]: an elementwise function of codes, as its values at all 256 of them.
///
/// `q`: uint8 codes of any shape; `table`: uint8 [256]. Returns uint8 codes in q's shape and
/// layout, on the grid that the table was made for. Raises TypeError or ValueError for arguments
/// that break these rules.
at::Tensor quantized_lookup(const at::Tensor& q, const at::Tensor& table);

/// Checks the arguments; for the backends.
void check_quantized_lookup(const at::Tensor& q, const at::Tensor& table);

}  // namespace horizon::ops
