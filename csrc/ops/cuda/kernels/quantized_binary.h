#pragma once

#include "ops/cuda/kernels/quantized_codes.h"

// Sums and products of codes that lie in step.
namespace horizon::ops::cuda {

struct BinaryGrids {
  DeviceGrid a, b, y;
};

/// a + alpha * b.
struct SumOfCodes {
  double alpha;

  struct Constants {
    float a_ratio, b_ratio;

    HORIZON_HD float operator()(int32_t a, int32_t b) const {
      return quant::add_codes(static_cast<float>(a), a_ratio, static_cast<float>(b), b_ratio);
    }
  };
  HORIZON_HD Constants constants(const GridValues& a, const GridValues& b,
                                 const GridValues& y) const {
    return {quant::scale_ratio(a.scale, y.scale), quant::scale_ratio(alpha * b.scale, y.scale)};
  }
};

struct ProductOfCodes {
  struct Constants {
    float ratio;

    HORIZON_HD float operator()(int32_t a, int32_t b) const {
      return quant::multiply_codes(static_cast<float>(a), static_cast<float>(b), ratio);
    }
  };
  HORIZON_HD Constants constants(const GridValues& a, const GridValues& b,
                                 const GridValues& y) const {
    return {quant::product_multiplier(a.scale, b.scale, y.scale)};
  }
};

template <typename Operation>
struct CombineCodes {
  static constexpr uint32_t kThreads = 256;
  static constexpr int kPhases = 2;
  struct Shared {
    typename Operation::Constants constants;
    CodeOutput output;
    int32_t a_zero_point, b_zero_point;
  };
  using State = Nothing;

  BinaryGrids grids;
  Operation operation;
  quant::Activation activation;
  const uint8_t* a;
  const uint8_t* b;
  uint8_t* to;
  int64_t count;

  HORIZON_HD int64_t pieces() const { return (count + kCodeVector - 1) / kCodeVector; }

  Grid grid() const { return UnitCut::grid(pieces(), kThreads); }

  HORIZON_HD void operator()(int phase, const Thread& t, State&, Shared& shared) const {
    if (phase == 0) {
      // The divisions in double are made once for a block.
      if (t.index != 0) return;
      const GridValues x = grids.a.read();
      const GridValues z = grids.b.read();
      const GridValues y = grids.y.read();
      shared = {operation.constants(x, z, y), CodeOutput(y, activation), x.zero_point,
                z.zero_point};
      return;
    }
    const Shared own = shared;
    for (int64_t i = UnitCut::first(t); i < pieces(); i += UnitCut::step(t)) {
      const int64_t begin = i * kCodeVector;
      const int64_t left = count - begin;
      const int64_t size = left < kCodeVector ? left : kCodeVector;
      uint32_t x[kCodeVector];
      uint32_t z[kCodeVector];
      load<kCodeVector>(a + begin, size, x);
      load<kCodeVector>(b + begin, size, z);
      for (int j = 0; j < kCodeVector; ++j) {
        x[j] = own.output(own.constants(static_cast<int32_t>(x[j]) - own.a_zero_point,
                                        static_cast<int32_t>(z[j]) - own.b_zero_point));
      }
      store<kCodeVector>(to + begin, size, x);
    }
  }
};

}  // namespace horizon::ops::cuda
