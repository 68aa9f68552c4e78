#include <limits>

#include "ops/cpu/kernels/fused_lanes.h"
#include "quant/fake_quantize.h"

namespace horizon::cpu::HORIZON_CAPABILITY {
namespace {

using quant::Activation;

/// Packs flags (0 or -1) into bits, padding the last byte with zeros.
HORIZON_HD void pack(const int32_t* flags, int64_t n, uint8_t* bits) {
  int64_t i = 0;
#if defined(__AVX512F__)
  for (; i + 16 <= n; i += 16) {
    const auto word = static_cast<uint16_t>(_mm512_movepi32_mask(_mm512_loadu_si512(flags + i)));
    __builtin_memcpy(bits + i / 8, &word, 2);
  }
#elif defined(__AVX2__)
  for (; i + 8 <= n; i += 8) {
    bits[i / 8] = static_cast<uint8_t>(
        _mm256_movemask_ps(_mm256_loadu_ps(reinterpret_cast<const float*>(flags + i))));
  }
#endif
  for (; i < n; i += 8) {
    uint32_t byte = 0;
    for (int64_t j = 0; j < 8 && i + j < n; ++j) byte |= (flags[i + j] & 1U) << j;
    bits[i / 8] = static_cast<uint8_t>(byte);
  }
}

template <typename T, bool kPerRow, bool kSkip>
HORIZON_HD T pre_activation(const T* z, const T* skip, const T* a, const T* b, int64_t i) {
  const T v = std::fma(kPerRow ? a[0] : a[i], z[i], kPerRow ? b[0] : b[i]);
  return kSkip ? v + skip[i] : v;
}

/// The affine coefficients of row r: one each, or `length` in a vector.
template <bool kPerRow, typename T>
HORIZON_HD const T* coefficient(const T* vector, const FusedRows& rows, int64_t r, int64_t at) {
  return kPerRow ? vector + r % rows.channels : vector + at;
}

template <typename T, bool kPerRow, bool kSkip, Activation kAct, bool kQuantize>
void apply_rows(const FusedApply<T>& args, int64_t begin, int64_t end) {
  const FusedRows& rows = args.rows;
  const T scale = args.grid.scale, inv_scale = args.grid.inv_scale;
  const T zero_point = args.grid.zero_point, lo = args.grid.lo, hi = args.grid.hi;
  alignas(64) int32_t flags[kBlock];
  for (int64_t r = begin; r < end; ++r) {
    const int64_t length = rows.length_of(r);
    for (int64_t at = 0; at < length; at += kBlock) {
      const int64_t n = length - at < kBlock ? length - at : kBlock;
      const int64_t offset = r * rows.length + at;
      const T* z = args.z + offset;
      const T* skip = kSkip ? args.skip + offset : nullptr;
      const T* a = coefficient<kPerRow>(args.a, rows, r, at);
      const T* b = coefficient<kPerRow>(args.b, rows, r, at);
      T* y = args.y + offset;
      // y may be z itself: element i is read before it is written.
#pragma GCC ivdep
      for (int64_t i = 0; i < n; ++i) {
        T v = pre_activation<T, kPerRow, kSkip>(z, skip, a, b, i);
        bool pass = true;
        if constexpr (kAct != Activation::kNone) pass = v > T(0);
        if constexpr (kAct == Activation::kRelu6) pass = pass & (v < T(6));
        v = quant::activate(v, kAct, T(6));
        if constexpr (kQuantize) {
          pass = pass & quant::passes_gradient(v, inv_scale, zero_point, lo, hi);
          v = quant::fake_quantize(v, scale, inv_scale, zero_point, lo, hi);
        }
        y[i] = v;
        flags[i] = pass ? -1 : 0;
      }
      if (args.mask != nullptr) pack(flags, n, args.mask + r * rows.mask_stride() + at / 8);
    }
  }
}

template <typename T, bool kPerRow, bool kSkip, Activation kAct>
void range_rows(const FusedApply<T>& args, int64_t begin, int64_t end, T* lo, T* hi) {
  const FusedRows& rows = args.rows;
  constexpr T kInfinity = std::numeric_limits<T>::infinity();
  alignas(64) T values[kBlock];
  Lanes<T> lows, highs, group;
  lows.fill(kInfinity);
  highs.fill(-kInfinity);
  T lowest = kInfinity, highest = -kInfinity;
  for (int64_t r = begin; r < end; ++r) {
    const int64_t length = rows.length_of(r);
    for (int64_t at = 0; at < length; at += kBlock) {
      const int64_t n = length - at < kBlock ? length - at : kBlock;
      const int64_t offset = r * rows.length + at;
      const T* z = args.z + offset;
      const T* skip = kSkip ? args.skip + offset : nullptr;
      const T* a = coefficient<kPerRow>(args.a, rows, r, at);
      const T* b = coefficient<kPerRow>(args.b, rows, r, at);
      for (int64_t i = 0; i < n; ++i) {
        values[i] =
            quant::activate(pre_activation<T, kPerRow, kSkip>(z, skip, a, b, i), kAct, T(6));
      }
      int64_t i = 0;
      for (; i + kLanes<T> <= n; i += kLanes<T>) {
        group.load(values + i);
        lows.lower(group);
        highs.raise(group);
      }
      for (; i < n; ++i) {
        lowest = lower_of(lowest, values[i]);
        highest = higher_of(highest, values[i]);
      }
    }
  }
  T los[kLanes<T>], his[kLanes<T>];
  lows.store(los);
  highs.store(his);
  for (int i = 0; i < kLanes<T>; ++i) {
    lowest = lower_of(lowest, los[i]);
    highest = higher_of(highest, his[i]);
  }
  *lo = lowest;
  *hi = highest;
}

template <typename T, bool kPerRow, bool kSkip, Activation kAct>
void apply_chosen(const FusedApply<T>& args, int64_t begin, int64_t end) {
  if (args.grid.enabled) {
    apply_rows<T, kPerRow, kSkip, kAct, true>(args, begin, end);
  } else {
    apply_rows<T, kPerRow, kSkip, kAct, false>(args, begin, end);
  }
}

template <typename T, bool kPerRow, bool kSkip>
void apply_act(const FusedApply<T>& args, int64_t begin, int64_t end) {
  switch (args.activation) {
    case Activation::kRelu:
      return apply_chosen<T, kPerRow, kSkip, Activation::kRelu>(args, begin, end);
    case Activation::kRelu6:
      return apply_chosen<T, kPerRow, kSkip, Activation::kRelu6>(args, begin, end);
    default:
      return apply_chosen<T, kPerRow, kSkip, Activation::kNone>(args, begin, end);
  }
}

template <typename T>
void apply(const FusedApply<T>& args, int64_t begin, int64_t end) {
  if (args.rows.per_row) {
    return args.skip != nullptr ? apply_act<T, true, true>(args, begin, end)
                                : apply_act<T, true, false>(args, begin, end);
  }
  return args.skip != nullptr ? apply_act<T, false, true>(args, begin, end)
                              : apply_act<T, false, false>(args, begin, end);
}

template <typename T, bool kPerRow, bool kSkip>
void range_act(const FusedApply<T>& args, int64_t begin, int64_t end, T* lo, T* hi) {
  switch (args.activation) {
    case Activation::kRelu:
      return range_rows<T, kPerRow, kSkip, Activation::kRelu>(args, begin, end, lo, hi);
    case Activation::kRelu6:
      return range_rows<T, kPerRow, kSkip, Activation::kRelu6>(args, begin, end, lo, hi);
    default:
      return range_rows<T, kPerRow, kSkip, Activation::kNone>(args, begin, end, lo, hi);
  }
}

template <typename T>
void range(const FusedApply<T>& args, int64_t begin, int64_t end, T* lo, T* hi) {
  if (args.rows.per_row) {
    return args.skip != nullptr ? range_act<T, true, true>(args, begin, end, lo, hi)
                                : range_act<T, true, false>(args, begin, end, lo, hi);
  }
  return args.skip != nullptr ? range_act<T, false, true>(args, begin, end, lo, hi)
                              : range_act<T, false, false>(args, begin, end, lo, hi);
}

}  // namespace

template <typename T>
void add_forward(FusedKernelsOf<T>& table) {
  table.apply = apply<T>;
  table.range = range<T>;
}
template void add_forward<float>(FusedKernelsOf<float>&);
template void add_forward<double>(FusedKernelsOf<double>&);

}  // namespace horizon::cpu::HORIZON_CAPABILITY
