#include "ops/cpu/extremes.h"

#include <cmath>
#include <vector>

#include "ops/cpu/dense.h"
#include "ops/cpu/kernels/observe.h"

namespace horizon::cpu {
namespace {

// The same values, each once where an expanded dimension repeats them.
at::Tensor without_repeats(at::Tensor x) {
  for (int64_t dim = x.dim() - 1; dim >= 0; --dim) {
    if (x.stride(dim) == 0 && x.size(dim) > 1) x = x.narrow(dim, 0, 1);
  }
  return x;
}

Extremes merge(const Extremes& a, const Extremes& b) {
  if (std::isnan(a.lo)) return a;
  if (std::isnan(b.lo)) return b;
  return {std::min(a.lo, b.lo), std::max(a.hi, b.hi)};
}

}  // namespace

Extremes extremes(const at::Tensor& x) {
  TORCH_INTERNAL_ASSERT(x.numel() > 0);
  const at::Tensor source = dense_input(without_repeats(x));
  constexpr int64_t kChunk = 32768;
  const int64_t count = source.numel();
  const int64_t chunks = (count + kChunk - 1) / kChunk;
  const auto type = float_type(source.scalar_type());
  const auto* data = static_cast<const char*>(source.const_data_ptr());
  const auto width = static_cast<int64_t>(source.element_size());
  std::vector<Extremes> parts(static_cast<size_t>(chunks));
  at::parallel_for(0, chunks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      const int64_t first = chunk * kChunk;
      Extremes& part = parts[static_cast<size_t>(chunk)];
      observe_kernels().min_max(type, data + first * width, std::min(kChunk, count - first),
                                &part.lo, &part.hi);
    }
  });
  Extremes all = parts[0];
  for (const Extremes& part : parts) all = merge(all, part);
  return all;
}

}  // namespace horizon::cpu
