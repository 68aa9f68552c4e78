#pragma once

#include <cstdint>

#include "ops/cpu/dispatch.h"
#include "ops/fused_rows.h"
#include "quant/macros.h"
#include "quant/requantize.h"

namespace horizon::cpu {

using ops::FusedRows;

/// The grid of the output, in the compute type; `zero_point`, `lo`, `hi` in the grid's own terms.
template <typename T>
struct FusedGrid {
  bool enabled = false;
  T scale = 1;
  T inv_scale = 1;
  T zero_point = 0;
  T lo = 0;
  T hi = 0;
};

/// y = fq(act(fma(a, z, b) + skip)), and one bit per element: the gradient passes act and range.
template <typename T>
struct FusedApply {
  FusedRows rows;
  const T* z = nullptr;
  const T* a = nullptr;     ///< [channels] or, tiled, [rows.length]
  const T* b = nullptr;     ///< as `a`
  const T* skip = nullptr;  ///< laid out as z; may be null
  T* y = nullptr;           ///< may be z
  uint8_t* mask = nullptr;  ///< may be null
  quant::Activation activation = quant::Activation::kNone;
  FusedGrid<T> grid;
};

/// Per lane (or row): mean, sum of squared deviations, extremes. Extremes propagate NaN.
template <typename T>
struct FusedMoments {
  double* mean;
  double* m2;
  T* lo;
  T* hi;
};

/// Masked gradient of the output, and what turns it into the gradient of z:
/// dz = a g + (k (z - mean) + k0).
template <typename T>
struct FusedGradient {
  FusedRows rows;
  const T* grad = nullptr;
  const uint8_t* mask = nullptr;  ///< null: every bit set
  const T* z = nullptr;           ///< null: dz = a g
  const T* a = nullptr;           ///< null: 1
  const T* mean = nullptr;
  const T* k = nullptr;
  const T* k0 = nullptr;
  T* grad_z = nullptr;     ///< may be null, or grad
  T* grad_skip = nullptr;  ///< g itself; may be null
};

template <typename T>
struct FusedKernelsOf {
  /// Channels last: moments per lane over rows [begin, end); arrays of rows.length entries. A lane
  /// of the short last row that has no element is left out there. `variance` false: extremes only.
  void (*lane_moments)(const FusedRows& rows, const T* z, int64_t begin, int64_t end, bool variance,
                       const FusedMoments<T>& out);
  /// NCHW: moments per row; arrays of rows.count() entries.
  void (*row_moments)(const FusedRows& rows, const T* z, int64_t begin, int64_t end, bool variance,
                      const FusedMoments<T>& out);
  void (*apply)(const FusedApply<T>& args, int64_t begin, int64_t end);
  /// Extremes of act(fma(a, z, b) + skip) over rows [begin, end); NaN propagates.
  void (*range)(const FusedApply<T>& args, int64_t begin, int64_t end, T* lo, T* hi);
  /// Channels last: sums of g and of g (z - mean) per lane; arrays of rows.length entries. Without
  /// z only the first.
  void (*lane_sums)(const FusedGradient<T>& args, int64_t begin, int64_t end, double* sum,
                    double* product);
  /// NCHW: the same per row; arrays of rows.count() entries.
  void (*row_sums)(const FusedGradient<T>& args, int64_t begin, int64_t end, double* sum,
                   double* product);
  void (*gradient)(const FusedGradient<T>& args, int64_t begin, int64_t end);
};

struct FusedKernels {
  FusedKernelsOf<float> f32;
  FusedKernelsOf<double> f64;

  template <typename T>
  const FusedKernelsOf<T>& of() const {
    if constexpr (sizeof(T) == sizeof(float)) {
      return f32;
    } else {
      return f64;
    }
  }
};

HORIZON_DECLARE_KERNELS(FusedKernels, fused_kernels);

}  // namespace horizon::cpu
