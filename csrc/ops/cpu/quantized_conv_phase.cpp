#include "ops/cpu/quantized_conv_phase.h"

#include <c10/util/StringUtil.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "ops/cpu/kernel_log.h"

namespace horizon::ops {
namespace {

/// The first tap of the class that reaches outputs first, first + step, ... along one axis.
std::optional<int64_t> first_tap(const ConvProblem& p, int axis, int64_t first) {
  if (p.weight.base != kBaseConvTranspose) return 0;
  const int64_t classes = std::min(p.weight.period[axis], p.weight.kernel[axis]);
  for (int64_t k = 0; k < classes; ++k) {
    // Output o takes input (o + padding - k * dilation) / stride where that is whole.
    if ((first + p.padding[axis] - k * p.dilation[axis]) % p.stride[axis] == 0) return k;
  }
  return std::nullopt;
}

/// Where the taps of a class read along one axis, relative to i * input_step.
std::vector<int64_t> axis_offsets(const ConvProblem& p, const TapClass& taps, int axis,
                                  int64_t first) {
  std::vector<int64_t> offsets;
  for (const auto i : c10::irange(taps.count[axis])) {
    const int64_t k = taps.first[axis] + i * p.weight.period[axis];
    const int64_t reach = k * p.dilation[axis];
    offsets.push_back(p.weight.base == kBaseConvTranspose
                          ? (first + p.padding[axis] - reach) / p.stride[axis]
                          : reach - p.padding[axis]);
  }
  // In memory order, which a transposed kernel runs through backwards.
  std::sort(offsets.begin(), offsets.end());
  return offsets;
}

/// How many taps in a row follow each other in memory, so that one copy serves them.
int64_t memory_run(const Phase& phase, const ConvProblem& p) {
  const int64_t columns = phase.tap_count[1];
  if (p.weight.groups != 1 || columns == 0) return 1;
  for (int64_t t = 1; t < columns; ++t) {
    if (phase.tap_x[t] != phase.tap_x[t - 1] + 1) return 1;
  }
  return columns;
}

}  // namespace

std::array<int64_t, 2> phase_counts(const ConvProblem& p) {
  if (p.weight.base != kBaseConvTranspose) return {1, 1};
  return {std::min(p.stride[0], p.out_height), std::min(p.stride[1], p.out_width)};
}

Phase make_phase(const ConvProblem& p, int64_t y, int64_t x) {
  const bool transposed = p.weight.base == kBaseConvTranspose;
  const std::array<int64_t, 2> out{p.out_height, p.out_width};
  Phase phase{};
  phase.first = {y, x};
  phase.step = transposed ? p.stride : std::array<int64_t, 2>{1, 1};
  phase.input_step = transposed ? std::array<int64_t, 2>{1, 1} : p.stride;
  for (const auto axis : c10::irange(2)) {
    phase.size[axis] = (out[axis] - phase.first[axis] - 1) / phase.step[axis] + 1;
  }
  phase.correction.assign(p.weight.out_channels + 2 * kPackedLanes, 0);
  const auto row = first_tap(p, 0, y);
  const auto column = first_tap(p, 1, x);
  if (!row.has_value() || !column.has_value()) return phase;
  const int64_t row_classes = std::min(p.weight.period[1], p.weight.kernel[1]);
  phase.taps = &p.layout.classes[*row * row_classes + *column];
  phase.tap_count = phase.taps->count;
  const auto columns = axis_offsets(p, *phase.taps, 1, x);
  for (const int64_t offset : axis_offsets(p, *phase.taps, 0, y)) {
    phase.tap_y.insert(phase.tap_y.end(), columns.size(), offset);
    phase.tap_x.insert(phase.tap_x.end(), columns.begin(), columns.end());
  }
  std::memcpy(phase.correction.data(),
              p.packed + phase.taps->sums * static_cast<int64_t>(sizeof(int32_t)),
              p.weight.out_channels * sizeof(int32_t));
  for (int32_t& sum : phase.correction) {
    // Unsigned: a packed weight that is none has any sums.
    sum = static_cast<int32_t>(-static_cast<uint32_t>(sum) *
                               static_cast<uint32_t>(p.input_zero_point));
  }
  return phase;
}

cpu::GatherGeometry phase_geometry(const ConvProblem& p, const Phase& phase) {
  cpu::GatherGeometry g{};
  g.input = p.input;
  g.input_end = p.input + p.batch * p.height * p.width * p.in_channels;
  g.height = p.height;
  g.width = p.width;
  g.channels = p.in_channels;
  g.group_channels = p.weight.group_in;
  g.grid_height = phase.size[0];
  g.grid_width = phase.size[1];
  g.step_y = phase.input_step[0];
  g.step_x = phase.input_step[1];
  g.taps = static_cast<int64_t>(phase.tap_y.size());
  g.tap_y = phase.tap_y.data();
  g.tap_x = phase.tap_x.data();
  g.run = memory_run(phase, p);
  g.zero_point = p.input_zero_point;
  return g;
}

void row_positions(const ConvProblem& p, const Phase& phase, int64_t first, int64_t rows,
                   int64_t* out) {
  int64_t j = first % phase.size[1];
  int64_t i = first / phase.size[1] % phase.size[0];
  int64_t n = first / (phase.size[1] * phase.size[0]);
  for (const auto r : c10::irange(rows)) {
    const int64_t y = phase.first[0] + i * phase.step[0];
    const int64_t x = phase.first[1] + j * phase.step[1];
    out[r] = ((n * p.out_height + y) * p.out_width + x) * p.weight.out_channels;
    if (++j < phase.size[1]) continue;
    j = 0;
    if (++i < phase.size[0]) continue;
    i = 0;
    ++n;
  }
}

void log_phase(const ConvProblem& p, const Phase& phase, const char* kernel) {
  if (!kernel_log_enabled()) return;
  const WeightShape& w = p.weight;
  log_kernel(c10::str("quantized_conv base ", w.base, ": ", p.batch, "x", p.in_channels, "x",
                      p.height, "x", p.width, " to ", w.out_channels, " channels, ",
                      phase.tap_count[0], "x", phase.tap_count[1], " taps, stride ", p.stride[0],
                      "x", p.stride[1], ", groups ", w.groups, ": ", kernel));
}

void finish_sums(const ConvOutput& output, const int32_t* correction, int64_t channel,
                 const int32_t* acc, int64_t acc_stride, int64_t rows, int64_t columns,
                 const int64_t* position) {
  cpu::ConvEpilogue epilogue = output.epilogue;
  epilogue.correction = correction + channel;
  epilogue.multiplier += channel;
  epilogue.offset += channel;
  if (epilogue.skip != nullptr) epilogue.skip += channel;
  const auto& kernels = cpu::codes_kernels();
  if (output.codes != nullptr) {
    kernels.conv_codes(epilogue, acc, acc_stride, rows, columns, position, output.codes + channel);
  } else {
    kernels.conv_values(epilogue, acc, acc_stride, rows, columns, position,
                        output.values + channel);
  }
}

}  // namespace horizon::ops
