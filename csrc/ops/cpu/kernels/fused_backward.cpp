#include "ops/cpu/kernels/fused_lanes.h"

namespace horizon::cpu::HORIZON_CAPABILITY {
namespace {

constexpr int64_t kTileElements = 16384;

template <typename T, bool kMask>
HORIZON_HD T masked(const T* grad, const uint8_t* mask, int64_t i) {
  return !kMask || mask_bit(mask, i) ? grad[i] : T(0);
}

/// Elements [i, i + lanes) of a row.
template <typename T, bool kMask>
HORIZON_HD void load_gradient(Lanes<T>& g, const T* grad, const uint8_t* mask, int64_t i) {
  if constexpr (kMask) {
    g.load_masked(grad + i, mask_word<T>(mask + i / 8));
  } else {
    g.load(grad + i);
  }
}

template <bool kMask, typename T>
HORIZON_HD const uint8_t* mask_row(const FusedGradient<T>& args, int64_t r) {
  return kMask ? args.mask + r * args.rows.mask_stride() : nullptr;
}

/// Adds the sums of rows [begin, end) over kGroups groups of lanes from `at` on.
template <typename T, bool kMask, bool kProduct, int kGroups>
HORIZON_HD void sum_groups(const FusedGradient<T>& args, int64_t begin, int64_t end, int64_t at,
                           double* sum, double* product) {
  const int64_t stride = args.rows.length;
  Lanes<T> first[kGroups], second[kGroups], mean[kGroups];
  for (int j = 0; j < kGroups; ++j) {
    first[j].fill(T(0));
    second[j].fill(T(0));
    if constexpr (kProduct) mean[j].load(args.mean + at + j * kLanes<T>);
  }
  for (int64_t r = begin; r < end; ++r) {
    const T* grad = args.grad + r * stride;
    const T* z = kProduct ? args.z + r * stride : nullptr;
    const uint8_t* mask = mask_row<kMask>(args, r);
    for (int j = 0; j < kGroups; ++j) {
      const int64_t i = at + j * kLanes<T>;
      Lanes<T> g, x;
      Lanes<T>::prefetch(grad + kRowsAhead * stride + i);
      if constexpr (kProduct) Lanes<T>::prefetch(z + kRowsAhead * stride + i);
      load_gradient<T, kMask>(g, grad, mask, i);
      first[j].add(g);
      if constexpr (kProduct) {
        x.load(z + i);
        x.subtract(mean[j]);
        second[j].add_product(g, x);
      }
    }
  }
  for (int j = 0; j < kGroups; ++j) {
    T firsts[kLanes<T>], seconds[kLanes<T>];
    first[j].store(firsts);
    second[j].store(seconds);
    for (int i = 0; i < kLanes<T>; ++i) {
      const int64_t lane = at + j * kLanes<T> + i;
      sum[lane] += static_cast<double>(firsts[i]);
      if constexpr (kProduct) product[lane] += static_cast<double>(seconds[i]);
    }
  }
}

/// Adds the sums of rows [begin, end) over lanes [0, length) to `sum` and `product`.
template <typename T, bool kMask, bool kProduct>
HORIZON_HD void sum_tile(const FusedGradient<T>& args, int64_t begin, int64_t end, int64_t length,
                         double* sum, double* product) {
  const int64_t stride = args.rows.length;
  int64_t at = 0;
  for (; at + kWideGroups * kLanes<T> <= length; at += kWideGroups * kLanes<T>) {
    sum_groups<T, kMask, kProduct, kWideGroups>(args, begin, end, at, sum, product);
  }
  for (; at + kLanes<T> <= length; at += kLanes<T>) {
    sum_groups<T, kMask, kProduct, 1>(args, begin, end, at, sum, product);
  }
  for (; at < length; ++at) {
    T first = 0, second = 0;
    for (int64_t r = begin; r < end; ++r) {
      const int64_t offset = r * stride;
      const T g = masked<T, kMask>(args.grad + offset, mask_row<kMask>(args, r), at);
      first += g;
      if constexpr (kProduct) second += g * (args.z[offset + at] - args.mean[at]);
    }
    sum[at] += static_cast<double>(first);
    if constexpr (kProduct) product[at] += static_cast<double>(second);
  }
}

template <typename T, bool kMask, bool kProduct>
void lane_sums_of(const FusedGradient<T>& args, int64_t begin, int64_t end, double* sum,
                  double* product) {
  const int64_t length = args.rows.length;
  for (int64_t i = 0; i < length; ++i) {
    sum[i] = 0;
    if constexpr (kProduct) product[i] = 0;
  }
  const int64_t full = end * length > args.rows.total ? end - 1 : end;
  const int64_t wanted = kTileElements / length;
  const int64_t step = wanted < 8 ? 8 : wanted;
  for (int64_t r = begin; r < full; r += step) {
    const int64_t stop = full - r < step ? full : r + step;
    sum_tile<T, kMask, kProduct>(args, r, stop, length, sum, product);
  }
  if (full < end) {
    sum_tile<T, kMask, kProduct>(args, full, end, args.rows.length_of(full), sum, product);
  }
}

template <typename T, bool kMask, bool kProduct>
void row_sums_of(const FusedGradient<T>& args, int64_t begin, int64_t end, double* sum,
                 double* product) {
  const int64_t length = args.rows.length;
  for (int64_t r = begin; r < end; ++r) {
    const uint8_t* mask = mask_row<kMask>(args, r);
    const T* grad = args.grad + r * length;
    const T* z = kProduct ? args.z + r * length : nullptr;
    const T center = kProduct ? args.mean[r % args.rows.channels] : T(0);
    double total = 0, total_product = 0;
    for (int64_t start = 0; start < length; start += kTileElements) {
      const int64_t stop = length - start < kTileElements ? length : start + kTileElements;
      const int64_t whole = stop - (stop - start) % kLanes<T>;
      Lanes<T> first, second, mean, g, x;
      first.fill(T(0));
      second.fill(T(0));
      mean.fill(center);
      for (int64_t i = start; i < whole; i += kLanes<T>) {
        load_gradient<T, kMask>(g, grad, mask, i);
        first.add(g);
        if constexpr (kProduct) {
          x.load(z + i);
          x.subtract(mean);
          second.add_product(g, x);
        }
      }
      T firsts[kLanes<T>], seconds[kLanes<T>];
      first.store(firsts);
      second.store(seconds);
      for (int64_t i = whole; i < stop; ++i) {
        const T value = masked<T, kMask>(grad, mask, i);
        firsts[i - whole] += value;
        if constexpr (kProduct) seconds[i - whole] += value * (z[i] - center);
      }
      for (int i = 0; i < kLanes<T>; ++i) {
        total += static_cast<double>(firsts[i]);
        total_product += static_cast<double>(seconds[i]);
      }
    }
    sum[r] = total;
    if constexpr (kProduct) product[r] = total_product;
  }
}

template <typename T, bool kLanewise, bool kMask, bool kProduct>
void sums_of(const FusedGradient<T>& args, int64_t begin, int64_t end, double* sum,
             double* product) {
  if constexpr (kLanewise) {
    lane_sums_of<T, kMask, kProduct>(args, begin, end, sum, product);
  } else {
    row_sums_of<T, kMask, kProduct>(args, begin, end, sum, product);
  }
}

template <typename T, bool kLanewise>
void sums(const FusedGradient<T>& args, int64_t begin, int64_t end, double* sum, double* product) {
  if (args.mask != nullptr) {
    return args.z != nullptr ? sums_of<T, kLanewise, true, true>(args, begin, end, sum, product)
                             : sums_of<T, kLanewise, true, false>(args, begin, end, sum, product);
  }
  return args.z != nullptr ? sums_of<T, kLanewise, false, true>(args, begin, end, sum, product)
                           : sums_of<T, kLanewise, false, false>(args, begin, end, sum, product);
}

/// The masked gradient of up to kBlock elements; `mask` points at the first one's byte.
template <typename T>
HORIZON_HD void expand(const T* grad, const uint8_t* mask, int64_t n, T* g) {
  int64_t i = 0;
  if (mask == nullptr) {
    for (; i < n; ++i) g[i] = grad[i];
    return;
  }
  for (; i + kLanes<T> <= n; i += kLanes<T>) {
    Lanes<T> lanes;
    lanes.load_masked(grad + i, mask_word<T>(mask + i / 8));
    lanes.store(g + i);
  }
  for (; i < n; ++i) g[i] = masked<T, true>(grad, mask, i);
}

template <typename T, bool kPerRow>
void gradient_rows(const FusedGradient<T>& args, int64_t begin, int64_t end) {
  const FusedRows& rows = args.rows;
  alignas(64) T g[kBlock];
  for (int64_t r = begin; r < end; ++r) {
    const int64_t length = rows.length_of(r);
    for (int64_t at = 0; at < length; at += kBlock) {
      const int64_t n = length - at < kBlock ? length - at : kBlock;
      const int64_t offset = r * rows.length + at;
      const uint8_t* mask =
          args.mask == nullptr ? nullptr : args.mask + r * rows.mask_stride() + at / 8;
      expand(args.grad + offset, mask, n, g);
      if (args.grad_skip != nullptr) {
        __builtin_memcpy(args.grad_skip + offset, g, static_cast<size_t>(n) * sizeof(T));
      }
      if (args.grad_z == nullptr) continue;
      T* out = args.grad_z + offset;
      const int64_t c = kPerRow ? r % rows.channels : at;
      constexpr int64_t kStep = kPerRow ? 0 : 1;
      if (args.a == nullptr) {
        __builtin_memcpy(out, g, static_cast<size_t>(n) * sizeof(T));
      } else if (args.z == nullptr) {
        const T* a = args.a + c;
#pragma GCC ivdep
        for (int64_t i = 0; i < n; ++i) out[i] = a[i * kStep] * g[i];
      } else {
        const T* a = args.a + c;
        const T* mean = args.mean + c;
        const T* k = args.k + c;
        const T* k0 = args.k0 + c;
        const T* z = args.z + offset;
#pragma GCC ivdep
        for (int64_t i = 0; i < n; ++i) {
          const int64_t j = i * kStep;
          out[i] = a[j] * g[i] + (k[j] * (z[i] - mean[j]) + k0[j]);
        }
      }
    }
  }
}

template <typename T>
void gradient(const FusedGradient<T>& args, int64_t begin, int64_t end) {
  if (args.rows.per_row) {
    gradient_rows<T, true>(args, begin, end);
  } else {
    gradient_rows<T, false>(args, begin, end);
  }
}

}  // namespace

template <typename T>
void add_backward(FusedKernelsOf<T>& table) {
  table.lane_sums = sums<T, true>;
  table.row_sums = sums<T, false>;
  table.gradient = gradient<T>;
}
template void add_backward<float>(FusedKernelsOf<float>&);
template void add_backward<double>(FusedKernelsOf<double>&);

}  // namespace horizon::cpu::HORIZON_CAPABILITY
