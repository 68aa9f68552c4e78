#include "ops/cpu/kernels/code_writer.h"
#include "ops/cpu/kernels/depthwise.h"

// The AVX-512 copy alone has contents; callers ask has_vnni() first.
#if defined(__AVX512F__)
#pragma GCC target("avx512vnni")

namespace horizon::cpu::avx512 {
namespace {

// Codes of four taps are interleaved byte by byte, 64 channels at a time, so that one instruction
// multiplies and sums four taps of 16 channels. Interleaving leaves the channels in four
// vectors: vector v has channels 16 i + 4 v + (0..3) in its i-th quarter. In that order weights and
// constants are prepared; packing the results undoes it.
constexpr int64_t kBlock = 64;
constexpr int64_t kVectors = 4;
constexpr int64_t kWord = 4;
constexpr __mmask64 kAll = ~__mmask64{0};

/// Whether a block of so many channels takes two pixels at a time.
HORIZON_INLINE bool is_halves(int64_t channels) { return channels <= kBlock / 2; }

/// Vectors of a block: correction, multiplier and offset, the weights of each row's words, and the
/// same weights one tap later.
int64_t block_vectors(int64_t tap_rows, int64_t words) {
  return (3 + tap_rows * words * 2) * kVectors;
}

int64_t words_of(int64_t tap_columns) { return (tap_columns + kWord - 1) / kWord; }

int64_t prepared_bytes(int64_t tap_rows, int64_t tap_columns, int64_t channels) {
  return (channels + kBlock - 1) / kBlock * block_vectors(tap_rows, words_of(tap_columns)) * 64;
}

void prepare(const DepthwiseLayer& layer, const int8_t* packed, void* prepared) {
  const int64_t words = words_of(layer.tap_columns);
  const int64_t channels = layer.geometry.channels;
  auto* out = static_cast<char*>(prepared);
  const auto put = [&](int64_t first, const void* from, int32_t shift) {
    const bool halves = is_halves(channels - first);
    for (int64_t v = 0; v < kVectors; ++v) {
      uint32_t lanes[16] = {};
      for (int64_t part = 0; part < 4; ++part) {
        const int64_t c = first + part % (halves ? 2 : 4) * 16 + v * 4;
        const auto* source = static_cast<const char*>(from) + c * 4;
        if (c + 4 <= channels) {
          std::memcpy(lanes + part * 4, source, 16);
        } else if (c < channels) {
          std::memcpy(lanes + part * 4, source, (channels - c) * 4);
        }
      }
      for (uint32_t& lane : lanes) lane <<= shift;
      std::memcpy(out, lanes, sizeof lanes);
      out += sizeof lanes;
    }
  };
  for (int64_t first = 0; first < channels; first += kBlock) {
    put(first, layer.epilogue.correction, 0);
    put(first, layer.epilogue.multiplier, 0);
    put(first, layer.epilogue.offset, 0);
    for (const int32_t shift : {0, 8}) {
      for (int64_t w = 0; w < layer.tap_rows * words; ++w) {
        put(first, packed + w * channels * kWord, shift);
      }
    }
  }
}

HORIZON_INLINE void interleave(__m512i a, __m512i b, __m512i c, __m512i d, __m512i* out) {
  const __m512i ab_low = _mm512_maskz_unpacklo_epi8(kAll, a, b);
  const __m512i ab_high = _mm512_maskz_unpackhi_epi8(kAll, a, b);
  const __m512i cd_low = _mm512_maskz_unpacklo_epi8(kAll, c, d);
  const __m512i cd_high = _mm512_maskz_unpackhi_epi8(kAll, c, d);
  out[0] = _mm512_maskz_unpacklo_epi16(~__mmask32{0}, ab_low, cd_low);
  out[1] = _mm512_maskz_unpackhi_epi16(~__mmask32{0}, ab_low, cd_low);
  out[2] = _mm512_maskz_unpacklo_epi16(~__mmask32{0}, ab_high, cd_high);
  out[3] = _mm512_maskz_unpackhi_epi16(~__mmask32{0}, ab_high, cd_high);
}

/// One block of channels, kFull where it fills its vectors. With kHalves it has at most 32
/// channels, and a vector holds two pixels: one of each half of the row.
template <bool kHalves, bool kFull>
struct Block {
  const char* vectors;
  int64_t first;   ///< channel
  __mmask64 mask;  ///< of its channels
  int64_t apart;   ///< from a pixel of the first half to that of the second, in pointers
  int64_t output_apart;

  HORIZON_INLINE __m512i at(int64_t i) const { return _mm512_loadu_si512(vectors + i * 64); }

  HORIZON_INLINE __m512i load(const uint8_t* const* pixel) const {
    const uint8_t* one = pixel[0] + first;
    if constexpr (kHalves) {
      const uint8_t* two = pixel[apart] + first;
      const auto half = static_cast<__mmask32>(mask);
      const __m256i low = kFull ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(one))
                                : _mm256_maskz_loadu_epi8(half, one);
      const __m256i high = kFull ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(two))
                                 : _mm256_maskz_loadu_epi8(half, two);
      return _mm512_maskz_inserti64x4(0xFF, _mm512_castsi256_si512(low), high, 1);
    }
    return kFull ? _mm512_loadu_si512(one) : _mm512_maskz_loadu_epi8(mask, one);
  }

  HORIZON_INLINE void store(const __m512i* sums, const CodeWriter& writer, uint8_t* output) const {
    __m512i codes[kVectors];
    for (int64_t v = 0; v < kVectors; ++v) {
      const FloatVector value = quant::scale_value(
          FloatVector::from(IntVector{sums[v]}), FloatVector(_mm512_castsi512_ps(at(kVectors + v))),
          FloatVector(_mm512_castsi512_ps(at(2 * kVectors + v))));
      codes[v] = writer.code(value).v;
    }
    const __m512i bytes = _mm512_packus_epi16(_mm512_packs_epi32(codes[0], codes[1]),
                                              _mm512_packs_epi32(codes[2], codes[3]));
    if constexpr (kFull && !kHalves) {
      _mm512_storeu_si512(output + first, bytes);
    } else {
      _mm512_mask_storeu_epi8(output + first, mask, bytes);
    }
    if constexpr (kHalves) {
      const __m512i swapped = _mm512_maskz_shuffle_i64x2(0xFF, bytes, bytes, 0x4E);
      _mm512_mask_storeu_epi8(output + output_apart + first, mask, swapped);
    }
  }
};

/// Any taps and stride: one output after the other.
template <typename Channels>
void run_block(const DepthwiseLayer& layer, const Channels& block, const CodeWriter& writer,
               const uint8_t* const* pixels, int64_t span, int64_t width, uint8_t* output) {
  const GatherGeometry& g = layer.geometry;
  const int64_t words = words_of(layer.tap_columns);
  for (int64_t j = 0; j < width; ++j) {
    __m512i sums[kVectors];
    for (int64_t v = 0; v < kVectors; ++v) sums[v] = block.at(v);
    int64_t weights = 3 * kVectors;
    for (int64_t row = 0; row < layer.tap_rows; ++row) {
      const uint8_t* const* at = pixels + row * span + j * g.step_x - g.tap_x[0];
      for (int64_t w = 0; w < words; ++w, weights += kVectors) {
        const int64_t* x = g.tap_x + w * kWord;
        const int64_t left = layer.tap_columns - w * kWord;
        // Beyond the last tap the weights are zero.
        const __m512i one = block.load(at + x[0]);
        const __m512i two = left > 1 ? block.load(at + x[1]) : one;
        const __m512i three = left > 2 ? block.load(at + x[2]) : one;
        const __m512i four = left > 3 ? block.load(at + x[3]) : one;
        __m512i codes[kVectors];
        interleave(one, two, three, four, codes);
        for (int64_t v = 0; v < kVectors; ++v) {
          sums[v] = _mm512_dpbusd_epi32(sums[v], codes[v], block.at(weights + v));
        }
      }
    }
    block.store(sums, writer, output + j * layer.output_step);
  }
}

/// Three taps side by side at stride 1: what is interleaved for one output serves the next, with
/// the weights one tap later.
template <typename Channels>
void run_block_of_three(const DepthwiseLayer& layer, const Channels& block,
                        const CodeWriter& writer, const uint8_t* const* pixels, int64_t span,
                        int64_t width, uint8_t* output) {
  for (int64_t j = 0; j < width; j += 2) {
    __m512i one[kVectors];
    __m512i two[kVectors];
    for (int64_t v = 0; v < kVectors; ++v) one[v] = two[v] = block.at(v);
    int64_t weights = 3 * kVectors;
    const int64_t later = layer.tap_rows * kVectors;
    for (int64_t row = 0; row < layer.tap_rows; ++row, weights += kVectors) {
      const uint8_t* const* at = pixels + row * span + j;
      __m512i codes[kVectors];
      interleave(block.load(at), block.load(at + 1), block.load(at + 2), block.load(at + 3), codes);
      for (int64_t v = 0; v < kVectors; ++v) {
        one[v] = _mm512_dpbusd_epi32(one[v], codes[v], block.at(weights + v));
        two[v] = _mm512_dpbusd_epi32(two[v], codes[v], block.at(weights + later + v));
      }
    }
    uint8_t* to = output + j * layer.output_step;
    block.store(one, writer, to);
    if (j + 1 < width) block.store(two, writer, to + layer.output_step);
  }
}

/// Positions along a row of the image, and one more, that a row of outputs reads.
int64_t row_span(const DepthwiseLayer& layer) {
  const GatherGeometry& g = layer.geometry;
  return (g.grid_width - 1) * g.step_x + g.tap_x[layer.tap_columns - 1] - g.tap_x[0] + 2;
}

void find_pixels(const DepthwiseLayer& layer, int64_t row, int64_t span, const uint8_t** pixels) {
  const GatherGeometry& g = layer.geometry;
  const int64_t n = row / g.grid_height;
  const int64_t i = row % g.grid_height;
  for (int64_t t = 0; t < layer.tap_rows; ++t) {
    const int64_t y = i * g.step_y + g.tap_y[t * layer.tap_columns];
    const bool in_y = y >= 0 && y < g.height;
    const uint8_t* line = g.input + (n * g.height + (in_y ? y : 0)) * g.width * g.channels;
    for (int64_t k = 0; k < span; ++k) {
      const int64_t x = g.tap_x[0] + k;
      const bool in = in_y && x >= 0 && x < g.width;
      pixels[t * span + k] = in ? line + x * g.channels : layer.padding;
    }
  }
}

template <bool kHalves, bool kFull>
void run_channels(const DepthwiseLayer& layer, const char* vectors, int64_t first, int64_t channels,
                  const uint8_t* const* pixels, int64_t span, uint8_t* output) {
  const GatherGeometry& g = layer.geometry;
  // The halves of an odd row overlap, and write the same codes in the middle.
  const int64_t width = kHalves ? (g.grid_width + 1) / 2 : g.grid_width;
  const int64_t apart = g.grid_width - width;
  const __mmask64 mask = channels >= kBlock ? kAll : (__mmask64{1} << channels) - 1;
  const Block<kHalves, kFull> block{vectors, first, mask, apart * g.step_x,
                                    apart * layer.output_step};
  const CodeWriter writer(layer.epilogue.stage);
  const bool three = layer.tap_columns == 3 && g.step_x == 1 && g.tap_x[2] - g.tap_x[0] == 2;
  const auto run =
      three ? run_block_of_three<Block<kHalves, kFull>> : run_block<Block<kHalves, kFull>>;
  run(layer, block, writer, pixels, span, width, output);
}

void run_row(const DepthwiseLayer& layer, const void* prepared, int64_t row, int64_t begin,
             int64_t end, const uint8_t** pixels, uint8_t* output) {
  const int64_t vectors = block_vectors(layer.tap_rows, words_of(layer.tap_columns));
  const int64_t span = row_span(layer);
  find_pixels(layer, row, span, pixels);
  for (int64_t b = begin; b < end; ++b) {
    const int64_t channels = layer.geometry.channels - b * kBlock;
    const bool halves = is_halves(channels);
    const bool full = channels >= (halves ? kBlock / 2 : kBlock);
    const auto run = halves ? (full ? run_channels<true, true> : run_channels<true, false>)
                            : (full ? run_channels<false, true> : run_channels<false, false>);
    run(layer, static_cast<const char*>(prepared) + b * vectors * 64, b * kBlock, channels, pixels,
        span, output);
  }
}

}  // namespace

const DepthwiseLayerKernels& depthwise_vnni_kernels() {
  static const DepthwiseLayerKernels table{kBlock, prepared_bytes, prepare, row_span, run_row};
  return table;
}

}  // namespace horizon::cpu::avx512

#endif
