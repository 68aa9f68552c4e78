#include "ops/cpu/kernels/conv_amx.h"

#include "ops/cpu/kernels/gather.h"

// The AVX-512 copy alone has contents; callers ask has_amx() first.
#if defined(__AVX512F__)
#pragma GCC target("amx-tile,amx-int8")

#include <immintrin.h>

#include <limits>

namespace horizon::cpu::avx512 {
namespace {

constexpr int64_t kTileRows = 16;
constexpr int64_t kLanes = 16;
constexpr int64_t kWordBytes = 4;
constexpr int64_t kMostWords = 16;
constexpr int64_t kBlockBytes = kLanes * kWordBytes;

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

/// Tiles 0 to 3 hold sums, 4 and 5 codes, 6 and 7 weights.
void configure(int64_t words) {
  TileConfig config;
  for (int t = 0; t < 8; ++t) {
    const bool codes = t == 4 || t == 5;
    config.row_bytes[t] = static_cast<uint16_t>(codes ? words * kWordBytes : kBlockBytes);
    config.rows[t] = static_cast<uint8_t>(t >= 6 ? words : kTileRows);
  }
  // gcc 12 thinks that the instruction reads eight bytes, and drops the other stores.
  __asm__ volatile("" : : "r"(&config) : "memory");
  _tile_loadconfig(&config);
}

/// The sums of a pair and a panel, on their way to the output.
struct Pending {
  const int32_t* sums = nullptr;  ///< [32][kPanel]
  const TilePair* pair = nullptr;
  int64_t column = 0;
  int64_t next = 0;   ///< row
  int64_t count = 0;  ///< rows
};

template <bool kValues, bool kSkip>
class Finisher {
 public:
  explicit Finisher(const TileConv& conv) : conv_(conv), e_(conv.epilogue) {
    const OutputStage& stage = e_.stage;
    if constexpr (kValues) {
      const float infinity = std::numeric_limits<float>::infinity();
      const bool some = stage.activation != quant::Activation::kNone;
      low_ = _mm512_set1_ps(some ? 0.0F : -infinity);
      high_ = _mm512_set1_ps(stage.activation == quant::Activation::kRelu6 ? stage.six : infinity);
    } else {
      const quant::CodeEnds ends = quant::code_ends(stage.activation, stage.six, stage.zero_point);
      low_ = _mm512_set1_ps(ends.low);
      high_ = _mm512_set1_ps(ends.high);
    }
    zero_ = _mm512_set1_ps(stage.zero_point);
    ratio_ = _mm512_set1_ps(e_.skip_ratio);
    skip_zero_ = _mm512_set1_ps(static_cast<float>(e_.skip_zero_point));
  }

  void take(const int32_t* sums, const TilePair& pair, int64_t column) {
    at_ = {sums, &pair, column, 0, pair.count};
  }

  /// Two rows, as often as `times`.
  HORIZON_INLINE void advance(int64_t times) {
    for (; times > 0 && at_.next < at_.count; --times, at_.next += 2) {
      const int64_t columns = conv_.channels - at_.column;
      if (columns >= kPanel) {
        whole();
      } else if (columns == kLanes) {
        half();
      } else {
        part(columns);
      }
    }
  }

  void finish() { advance(kTileRows); }

 private:
  HORIZON_INLINE __m512 scaled(const int32_t* sums, int64_t column) const {
    const __m512 sum = _mm512_maskz_cvtepi32_ps(0xFFFF, _mm512_load_si512(sums));
    const __m512 v = _mm512_mul_ps(sum, _mm512_loadu_ps(e_.multiplier + column));
    return _mm512_add_ps(v, _mm512_loadu_ps(e_.offset + column));
  }

  HORIZON_INLINE __m512 skipped(__m512 v, __m128i codes) const {
    const __m512 code = _mm512_maskz_cvtepi32_ps(0xFFFF, _mm512_maskz_cvtepu8_epi32(0xFFFF, codes));
    return _mm512_fmadd_ps(_mm512_sub_ps(code, skip_zero_), ratio_, v);
  }

  /// The second operand is what max and min return for equal ones: -0 stays.
  HORIZON_INLINE __m512 clamped(__m512 v) const {
    return _mm512_maskz_min_ps(0xFFFF, high_, _mm512_maskz_max_ps(0xFFFF, low_, v));
  }

  HORIZON_INLINE __m512i code(__m512 v) const {
    return _mm512_maskz_cvtps_epi32(0xFFFF, clamped(_mm512_add_ps(v, zero_)));
  }

  /// kPanel outputs of two rows; the last of an odd number comes twice.
  HORIZON_INLINE void whole() {
    const int64_t second = at_.next + 1 < at_.count ? at_.next + 1 : at_.next;
    const int64_t first = at_.next;
    __m512 v[4];
    int64_t to[2];
#pragma GCC unroll 2
    for (int r = 0; r < 2; ++r) {
      const int64_t k = r == 0 ? first : second;
      to[r] = at_.pair->position[k] + at_.column;
      const int32_t* sums = at_.sums + at_.pair->row[k] * kPanel;
#pragma GCC unroll 2
      for (int b = 0; b < 2; ++b) {
        v[2 * r + b] = scaled(sums + b * kLanes, at_.column + b * kLanes);
        if constexpr (kSkip) {
          const auto* skip = reinterpret_cast<const __m128i*>(e_.skip + to[r] + b * kLanes);
          v[2 * r + b] = skipped(v[2 * r + b], _mm_loadu_si128(skip));
        }
        if constexpr (kValues) {
          _mm512_storeu_ps(conv_.values + to[r] + b * kLanes, clamped(v[2 * r + b]));
        }
      }
    }
    if constexpr (!kValues) {
      const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
      const __m512i low = _mm512_packus_epi32(code(v[0]), code(v[1]));
      const __m512i high = _mm512_packus_epi32(code(v[2]), code(v[3]));
      const __m512i bytes =
          _mm512_maskz_permutexvar_epi32(0xFFFF, order, _mm512_packus_epi16(low, high));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(conv_.codes + to[0]),
                          _mm512_maskz_extracti64x4_epi64(0xFF, bytes, 0));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(conv_.codes + to[1]),
                          _mm512_maskz_extracti64x4_epi64(0xFF, bytes, 1));
    }
  }

  /// kLanes outputs of two rows.
  HORIZON_INLINE void half() {
    for (int64_t k = at_.next; k < at_.next + 2 && k < at_.count; ++k) {
      const int64_t to = at_.pair->position[k] + at_.column;
      __m512 v = scaled(at_.sums + at_.pair->row[k] * kPanel, at_.column);
      if constexpr (kSkip) {
        v = skipped(v, _mm_loadu_si128(reinterpret_cast<const __m128i*>(e_.skip + to)));
      }
      if constexpr (kValues) {
        _mm512_storeu_ps(conv_.values + to, clamped(v));
      } else {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(conv_.codes + to),
                         _mm512_maskz_cvtepi32_epi8(0xFFFF, code(v)));
      }
    }
  }

  /// Fewer than kPanel outputs of two rows.
  HORIZON_INLINE void part(int64_t columns) {
    for (int64_t k = at_.next; k < at_.next + 2 && k < at_.count; ++k) {
      const int64_t to = at_.pair->position[k] + at_.column;
      const int32_t* sums = at_.sums + at_.pair->row[k] * kPanel;
      for (int64_t c = 0; c < columns; c += kLanes) {
        const int64_t left = columns - c;
        const auto mask = static_cast<__mmask16>(left >= kLanes ? 0xFFFF : (1U << left) - 1);
        __m512 v = scaled(sums + c, at_.column + c);
        if constexpr (kSkip) v = skipped(v, _mm_maskz_loadu_epi8(mask, e_.skip + to + c));
        if constexpr (kValues) {
          _mm512_mask_storeu_ps(conv_.values + to + c, mask, clamped(v));
        } else {
          _mm512_mask_cvtepi32_storeu_epi8(conv_.codes + to + c, mask, code(v));
        }
      }
    }
  }

  const TileConv& conv_;
  const ConvEpilogue& e_;
  Pending at_;
  __m512 low_, high_, zero_, ratio_, skip_zero_;
};

/// kRows x kBlocks tiles of sums from -z * sum(W) on. They wrap instead of saturating, so that
/// they are exact whenever the sum of centred codes fits int32.
template <int kRows, int kBlocks, typename Finish>
HORIZON_INLINE void multiply(const TileConv& conv, const TilePair& pair, const int8_t* w,
                             int64_t column, Finish& last, int32_t* sums) {
  const int64_t steps = conv.depth.steps;
  const int64_t width = conv.depth.words * kBlockBytes;
  const int8_t* w1 = w + conv.block_bytes;
  const int32_t* start = conv.epilogue.correction + column;
  const int64_t pace = (kTileRows + steps - 1) / steps;
  _tile_loadd(0, start, 0);
  if constexpr (kBlocks == 2) _tile_loadd(1, start + kLanes, 0);
  if constexpr (kRows == 2) _tile_loadd(2, start, 0);
  if constexpr (kRows == 2 && kBlocks == 2) _tile_loadd(3, start + kLanes, 0);
  for (int64_t s = 0; s < steps; ++s) {
    const int64_t codes = conv.step_offset[s];
    _tile_loadd(6, w + s * width, kBlockBytes);
    _tile_loadd(4, pair.tile[0] + codes, conv.row_bytes);
    _tile_dpbusd(0, 4, 6);
    if constexpr (kBlocks == 2) {
      _tile_loadd(7, w1 + s * width, kBlockBytes);
      _tile_dpbusd(1, 4, 7);
    }
    if constexpr (kRows == 2) {
      _tile_loadd(5, pair.tile[1] + codes, conv.row_bytes);
      _tile_dpbusd(2, 5, 6);
      if constexpr (kBlocks == 2) _tile_dpbusd(3, 5, 7);
    }
    last.advance(pace);
  }
  constexpr int64_t kStride = kPanel * static_cast<int64_t>(sizeof(int32_t));
  int32_t* second = sums + kTileRows * kPanel;
  _tile_stored(0, sums, kStride);
  if constexpr (kBlocks == 2) _tile_stored(1, sums + kLanes, kStride);
  if constexpr (kRows == 2) _tile_stored(2, second, kStride);
  if constexpr (kRows == 2 && kBlocks == 2) _tile_stored(3, second + kLanes, kStride);
}

template <bool kValues, bool kSkip>
void run(const TileConv& conv, const TilePair* pairs, int64_t count, int64_t begin, int64_t end) {
  // One is filled while the other is emptied.
  alignas(64) int32_t sums[2][TilePair::kRows * kPanel];
  Finisher<kValues, kSkip> last(conv);
  int64_t turn = 0;
  for (int64_t n = begin; n < end; ++n) {
    const int64_t column = n * kPanel;
    const int8_t* w = conv.weights + 2 * n * conv.block_bytes;
    const bool two = conv.channels - column > kLanes;
    for (int64_t i = 0; i < count; ++i, turn ^= 1) {
      const TilePair& pair = pairs[i];
      int32_t* to = sums[turn];
      if (pair.tile[1] != nullptr) {
        two ? multiply<2, 2>(conv, pair, w, column, last, to)
            : multiply<2, 1>(conv, pair, w, column, last, to);
      } else {
        two ? multiply<1, 2>(conv, pair, w, column, last, to)
            : multiply<1, 1>(conv, pair, w, column, last, to);
      }
      last.take(to, pair, column);
    }
  }
  last.finish();
}

}  // namespace

TileDepth tile_depth(int64_t words) {
  const int64_t steps = (words + kMostWords - 1) / kMostWords;
  return {steps, (words + steps - 1) / steps};
}

void conv_tiles(const TileConv& conv, const TilePair* pairs, int64_t count, int64_t begin,
                int64_t end) {
  configure(conv.depth.words);
  const bool skip = conv.epilogue.skip != nullptr;
  if (conv.values != nullptr) {
    (skip ? run<true, true> : run<true, false>)(conv, pairs, count, begin, end);
  } else {
    (skip ? run<false, true> : run<false, false>)(conv, pairs, count, begin, end);
  }
  _tile_release();
}

void gather_codes(const GatherGeometry& geometry, int64_t first, int64_t rows, uint8_t* a) {
  gather_rows<PlainEntry>(geometry, first, rows, a);
}

}  // namespace horizon::cpu::avx512

#endif
