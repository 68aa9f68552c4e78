#include "ops/quantized_lookup.h"

#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include "ops/cpu/dense.h"
#include "ops/cpu/kernels/lookup.h"

namespace horizon::ops {
namespace {

at::Tensor quantized_lookup_cpu(const at::Tensor& q, const at::Tensor& table) {
  check_quantized_lookup(q, table);
  const at::Tensor source = cpu::dense_input(q);
  const at::Tensor entries = table.contiguous();
  at::Tensor out = at::empty_like(source, at::MemoryFormat::Preserve);
  const auto* from = source.const_data_ptr<uint8_t>();
  const auto* values = entries.const_data_ptr<uint8_t>();
  auto* to = out.mutable_data_ptr<uint8_t>();
  const auto lookup = cpu::lookup_kernels().lookup;
  cpu::parallel_blocks(q.numel(), [&](int64_t begin, int64_t end) {
    const int64_t count = end - begin;
    lookup(from + begin, values, /*rows=*/1, count, count, to + begin, count);
  });
  return out;
}

}  // namespace
}  // namespace horizon::ops

TORCH_LIBRARY_IMPL(horizon, CPU, m) {
  m.impl("quantized_lookup", TORCH_FN(horizon::ops::quantized_lookup_cpu));
}
