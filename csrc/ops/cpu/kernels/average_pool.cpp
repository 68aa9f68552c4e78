#include "ops/cpu/kernels/average_pool.h"

#include "ops/cpu/kernels/code_writer.h"

namespace horizon::cpu::HORIZON_CAPABILITY {
namespace {

/// So many codes certainly have a uint16 sum.
constexpr int64_t kShortWindow = 257;

/// columns[i] (+)= the sum of kRows codes that lie `stride` apart.
template <int kRows, bool kFirst>
HORIZON_INLINE void add_rows(const uint8_t* __restrict q, int64_t stride, int64_t count,
                             uint16_t* __restrict columns) {
  for (int64_t i = 0; i < count; ++i) {
    int sum = kFirst ? 0 : columns[i];
    for (int r = 0; r < kRows; ++r) sum += q[i + r * stride];
    columns[i] = static_cast<uint16_t>(sum);
  }
}

void sum_columns(const uint8_t* q, int64_t rows, int64_t count, uint16_t* columns) {
  // As many rows at once as divide well: the sums go through memory less often.
  int64_t done = 0;
  switch (rows % 4) {
    case 1:
      add_rows<1, true>(q, count, count, columns);
      done = 1;
      break;
    case 2:
      add_rows<2, true>(q, count, count, columns);
      done = 2;
      break;
    case 3:
      add_rows<3, true>(q, count, count, columns);
      done = 3;
      break;
    default:
      add_rows<4, true>(q, count, count, columns);
      done = 4;
  }
  for (; done < rows; done += 4) add_rows<4, false>(q + done * count, count, count, columns);
}

/// sums[i] += values[i].
HORIZON_INLINE void add_words(const uint16_t* __restrict values, int64_t count,
                              int32_t* __restrict sums) {
  for (int64_t i = 0; i < count; ++i) sums[i] += values[i];
}

/// Adds the columns of a run of windows to their sums [windows][channels].
HORIZON_INLINE void add_run(const WindowRun& run, const uint16_t* columns, int64_t channels,
                            int32_t* sums) {
  for (int64_t x = 0; x < run.windows; ++x) {
    for (int64_t i = 0; i < run.size; ++i) {
      add_words(columns + (x * run.stride + i) * channels, channels, sums + x * channels);
    }
  }
}

/// The same for one channel, where neighbouring windows fill a vector.
HORIZON_INLINE void add_run_of_plane(const WindowRun& run, const uint16_t* __restrict columns,
                                     int32_t* __restrict sums) {
  for (int64_t i = 0; i < run.size; ++i) {
    if (run.stride == 1) {
      add_words(columns + i, run.windows, sums);
#if defined(__x86_64__)
    } else if (run.stride == 2) {
      // Two columns make one word, whose halves are those of even and of odd places.
      const int shift = i % 2 == 0 ? 0 : 16;
      for (int64_t x = 0; x < run.windows; ++x) {
        uint32_t pair;
        std::memcpy(&pair, columns + 2 * (x + i / 2), sizeof pair);
        sums[x] += static_cast<int32_t>((pair >> shift) & 0xFFFF);
      }
#endif
    } else {
      for (int64_t x = 0; x < run.windows; ++x) sums[x] += columns[x * run.stride + i];
    }
  }
}

/// sums [windows][channels] = -z for each pixel.
void centre(const AverageRow& row, int32_t* sums) {
  for (int64_t k = 0; k < row.run_count; ++k) {
    const WindowRun& run = row.runs[k];
    const auto value = static_cast<int32_t>(row.height * run.size * row.zero_point);
    const int64_t count = run.windows * row.channels;
    for (int64_t i = 0; i < count; ++i) sums[i] = -value;
    sums += count;
  }
}

void add_windows(const AverageRow& row, const uint16_t* columns, int32_t* sums) {
  for (int64_t k = 0; k < row.run_count; ++k) {
    const WindowRun& run = row.runs[k];
    const uint16_t* from = columns + run.begin * row.channels;
    if (row.channels == 1) {
      add_run_of_plane(run, from, sums);
    } else {
      add_run(run, from, row.channels, sums);
    }
    sums += run.windows * row.channels;
  }
}

/// Requantizes `count` sums; `multiplier` is one number, or with kEach one for every sum.
template <bool kEach>
HORIZON_INLINE void write_codes(const CodeWriter& write, const int32_t* sums,
                                const float* multiplier, int64_t count, uint8_t* output) {
  const auto block = [&](const int32_t* from, const float* m, uint8_t* to) {
    write.block(to, [&](int64_t i) {
      const FloatVector ratio = kEach ? FloatVector::load(m + i) : FloatVector(*m);
      return FloatVector::from(IntVector::load(from + i)) * ratio;
    });
  };
  int64_t i = 0;
  for (; i + kCodes <= count; i += kCodes) {
    block(sums + i, kEach ? multiplier + i : multiplier, output + i);
  }
  if (i == count) return;
  int32_t last[kCodes] = {};
  float ratios[kCodes] = {};
  uint8_t codes[kCodes];
  std::memcpy(last, sums + i, (count - i) * sizeof(int32_t));
  if (kEach) std::memcpy(ratios, multiplier + i, (count - i) * sizeof(float));
  block(last, kEach ? ratios : multiplier, codes);
  std::memcpy(output + i, codes, count - i);
}

void average_row(const AverageRow& row, const AverageScratch& scratch, uint8_t* output) {
  const int64_t channels = row.channels;
  centre(row, scratch.sums);
  const int64_t width = row.size * channels;
  for (int64_t y = 0; y < row.height; y += kShortWindow) {
    const int64_t rows = row.height - y < kShortWindow ? row.height - y : kShortWindow;
    sum_columns(row.from + y * width, rows, width, scratch.columns);
    add_windows(row, scratch.columns, scratch.sums);
  }
  const CodeWriter write(row.stage);
  if (channels >= kCodes) {
    for (int64_t x = 0; x < row.windows; ++x) {
      write_codes<false>(write, scratch.sums + x * channels, row.multiplier + x, channels,
                         output + x * channels);
    }
    return;
  }
  // Few channels: the windows lie in one another's vectors.
  const float* multiplier = row.multiplier;
  if (channels > 1) {
    for (int64_t x = 0; x < row.windows; ++x) {
      for (int64_t c = 0; c < channels; ++c) scratch.multipliers[x * channels + c] = multiplier[x];
    }
    multiplier = scratch.multipliers;
  }
  write_codes<true>(write, scratch.sums, multiplier, row.windows * channels, output);
}

int32_t sum(const uint8_t* q, int64_t count) {
  int32_t total = 0;
  for (int64_t i = 0; i < count; ++i) total += q[i];
  return total;
}

}  // namespace

const AveragePoolKernels& average_pool_kernels() {
  static const AveragePoolKernels table{average_row, sum};
  return table;
}

}  // namespace horizon::cpu::HORIZON_CAPABILITY
