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

/// sums[x] += the `size` columns from x * kStride on; a kStride of 0 stands for `stride`.
template <int64_t kStride>
HORIZON_INLINE void add_steps(const uint16_t* __restrict columns, int64_t stride, int64_t size,
                              int64_t windows, int32_t* __restrict sums) {
  const int64_t step = kStride == 0 ? stride : kStride;
  for (int64_t t = 0; t < size; ++t) {
    for (int64_t x = 0; x < windows; ++x) sums[x] += columns[x * step + t];
  }
}

/// The same for one channel: neighbouring windows of one size at one distance go together.
void add_windows_of_plane(const AverageRow& row, const uint16_t* columns, int32_t* sums) {
  for (int64_t x = 0; x < row.windows;) {
    const int64_t size = row.end[x] - row.begin[x];
    const int64_t stride = x + 1 < row.windows ? row.begin[x + 1] - row.begin[x] : 1;
    int64_t count = 1;
    while (x + count < row.windows && row.end[x + count] - row.begin[x + count] == size &&
           row.begin[x + count] - row.begin[x + count - 1] == stride) {
      ++count;
    }
    const uint16_t* from = columns + row.begin[x];
    if (stride == 1) {
      add_steps<1>(from, stride, size, count, sums + x);
    } else if (stride == 2) {
      add_steps<2>(from, stride, size, count, sums + x);
    } else {
      add_steps<0>(from, stride, size, count, sums + x);
    }
    x += count;
  }
}

/// Adds the windows' columns to their sums [windows][channels].
void add_windows(const AverageRow& row, const uint16_t* columns, int32_t* sums) {
  for (int64_t x = 0; x < row.windows; ++x) {
    for (int64_t i = row.begin[x]; i < row.end[x]; ++i) {
      add_words(columns + i * row.channels, row.channels, sums + x * row.channels);
    }
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
  for (int64_t x = 0; x < row.windows; ++x) {
    const int64_t pixels = row.height * (row.end[x] - row.begin[x]);
    const auto centre = static_cast<int32_t>(pixels * row.zero_point);
    for (int64_t c = 0; c < channels; ++c) scratch.sums[x * channels + c] = -centre;
  }
  const int64_t width = row.size * channels;
  for (int64_t y = 0; y < row.height; y += kShortWindow) {
    const int64_t rows = row.height - y < kShortWindow ? row.height - y : kShortWindow;
    sum_columns(row.from + y * width, rows, width, scratch.columns);
    const auto add = channels == 1 ? add_windows_of_plane : add_windows;
    add(row, scratch.columns, scratch.sums);
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
