#include "ops/cpu/quantized_conv_phase.h"

#include <c10/util/irange.h>

#include <algorithm>

namespace horizon::ops {
namespace {

struct AxisTap {
  int64_t index, offset;
};

/// The kernel positions along one axis that reach outputs first, first + step, ... and where they
/// read, relative to i * input_step.
std::vector<AxisTap> axis_taps(const ConvProblem& p, int axis, int64_t first) {
  std::vector<AxisTap> taps;
  for (int64_t k = 0; k < p.kernel[axis]; ++k) {
    if (p.base != kBaseConvTranspose) {
      taps.push_back({k, k * p.dilation[axis] - p.padding[axis]});
      continue;
    }
    // Output o takes input (o + padding - k * dilation) / stride where that is whole.
    const int64_t reach = first + p.padding[axis] - k * p.dilation[axis];
    if (reach % p.stride[axis] == 0) taps.push_back({k, reach / p.stride[axis]});
  }
  // In memory order, which a transposed kernel runs through backwards.
  if (p.base == kBaseConvTranspose) std::reverse(taps.begin(), taps.end());
  return taps;
}

/// How many taps in a row follow each other in memory, so that one copy serves them.
int64_t memory_run(const Phase& phase, const ConvProblem& p) {
  const auto taps = static_cast<int64_t>(phase.tap.size());
  if (p.groups != 1 || taps == 0) return 1;
  int64_t run = 1;
  while (run < taps && phase.tap_y[run] == phase.tap_y[0] &&
         phase.tap_x[run] == phase.tap_x[run - 1] + 1) {
    ++run;
  }
  for (int64_t t = 0; t < taps; ++t) {
    const bool starts = t % run == 0;
    if (!starts &&
        (phase.tap_y[t] != phase.tap_y[t - 1] || phase.tap_x[t] != phase.tap_x[t - 1] + 1)) {
      return 1;
    }
  }
  return taps % run == 0 ? run : 1;
}

}  // namespace

std::array<int64_t, 2> phase_counts(const ConvProblem& p) {
  if (p.base != kBaseConvTranspose) return {1, 1};
  return {std::min(p.stride[0], p.out_height), std::min(p.stride[1], p.out_width)};
}

Phase make_phase(const ConvProblem& p, int64_t y, int64_t x) {
  const bool transposed = p.base == kBaseConvTranspose;
  const std::array<int64_t, 2> out{p.out_height, p.out_width};
  Phase phase;
  phase.first = {y, x};
  phase.step = transposed ? p.stride : std::array<int64_t, 2>{1, 1};
  phase.input_step = transposed ? std::array<int64_t, 2>{1, 1} : p.stride;
  for (const auto axis : c10::irange(2)) {
    phase.size[axis] = (out[axis] - phase.first[axis] - 1) / phase.step[axis] + 1;
  }
  const auto columns = axis_taps(p, 1, x);
  for (const auto& row : axis_taps(p, 0, y)) {
    for (const auto& column : columns) {
      phase.tap.push_back(row.index * p.kernel[1] + column.index);
      phase.tap_y.push_back(row.offset);
      phase.tap_x.push_back(column.offset);
    }
  }
  return phase;
}

cpu::GatherGeometry phase_geometry(const ConvProblem& p, const Phase& phase) {
  cpu::GatherGeometry g{};
  g.input = p.input;
  g.height = p.height;
  g.width = p.width;
  g.channels = p.in_channels;
  g.group_channels = p.in_channels / p.groups;
  g.grid_height = phase.size[0];
  g.grid_width = phase.size[1];
  g.step_y = phase.input_step[0];
  g.step_x = phase.input_step[1];
  g.taps = static_cast<int64_t>(phase.tap.size());
  g.tap_y = phase.tap_y.data();
  g.tap_x = phase.tap_x.data();
  g.run = memory_run(phase, p);
  g.zero_point = p.input_zero_point;
  return g;
}

void row_positions(const ConvProblem& p, const Phase& phase, int64_t first, int64_t rows,
                   int64_t channel, int64_t* out) {
  int64_t j = first % phase.size[1];
  int64_t i = first / phase.size[1] % phase.size[0];
  int64_t n = first / (phase.size[1] * phase.size[0]);
  for (const auto r : c10::irange(rows)) {
    const int64_t y = phase.first[0] + i * phase.step[0];
    const int64_t x = phase.first[1] + j * phase.step[1];
    out[r] = ((n * p.out_height + y) * p.out_width + x) * p.out_channels + channel;
    if (++j < phase.size[1]) continue;
    j = 0;
    if (++i < phase.size[0]) continue;
    i = 0;
    ++n;
  }
}

void finish_sums(const ConvOutput& output, const int32_t* correction, int64_t channel,
                 const int32_t* acc, int64_t acc_stride, int64_t rows, int64_t columns,
                 const int64_t* position) {
  cpu::ConvEpilogue epilogue = output.epilogue;
  epilogue.correction = correction;
  epilogue.multiplier += channel;
  epilogue.offset += channel;
  const auto& kernels = cpu::codes_kernels();
  if (output.codes != nullptr) {
    kernels.conv_codes(epilogue, acc, acc_stride, rows, columns, position, output.codes);
  } else {
    kernels.conv_values(epilogue, acc, acc_stride, rows, columns, position, output.values);
  }
}

}  // namespace horizon::ops
