#include "ops/cpu/quantized_conv_run.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <memory>

#include "ops/cpu/kernels/depthwise.h"
#include "ops/cpu/kernels/gemm.h"

namespace horizon::ops {
namespace {

/// The output positions (first + i * step) of a grid, and the taps that reach them. A convolution
/// has one phase; a transposed one has one for each residue of the output position modulo the
/// stride, which is an ordinary convolution of stride 1.
struct Phase {
  std::array<int64_t, 2> first, step, size;
  std::array<int64_t, 2> input_step;
  std::vector<int64_t> tap;  ///< index into the kernel, row-major
  std::vector<int64_t> tap_y, tap_x;
};

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

/// How many phases a problem has, by axis.
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

cpu::GatherGeometry geometry(const ConvProblem& p, const Phase& phase) {
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

/// Offsets of output rows [first, first + rows) of a phase, in entries.
void positions(const ConvProblem& p, const Phase& phase, int64_t first, int64_t rows,
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

/// Finishes a tile of sums whose first column is `channel`.
void finish(const ConvOutput& output, const int32_t* correction, int64_t channel,
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

int64_t rounded_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

/// The weights of one phase, packed group by group.
struct PackedWeights {
  at::Tensor data;
  int64_t group_bytes = 0;
  std::vector<int32_t> correction;  ///< z * sum(W) per output channel, or 0
};

PackedWeights pack_weights(const ConvProblem& p, const Phase& phase,
                           const cpu::GemmKernels& kernels) {
  const int64_t channels = p.in_channels / p.groups;
  const int64_t group_out = p.out_channels / p.groups;
  const auto taps = static_cast<int64_t>(phase.tap.size());
  const int64_t kernel_taps = p.kernel[0] * p.kernel[1];
  const int64_t depth = taps * channels;
  const bool in_order = p.base != kBaseConvTranspose || kernel_taps == 1;
  PackedWeights packed;
  packed.group_bytes = rounded_up(kernels.packed_size(group_out, depth), 64);
  packed.data = at::empty({packed.group_bytes * p.groups}, at::kByte);
  packed.correction.resize(p.out_channels);
  const auto* weight = p.weight.const_data_ptr<int8_t>();
  auto* data = packed.data.mutable_data_ptr<uint8_t>();
  // Blocks of output channels of one group are packed on their own.
  const int64_t block = kernels.lanes * 4;
  const int64_t blocks = (group_out + block - 1) / block;
  at::parallel_for(0, p.groups * blocks, 1, [&](int64_t begin, int64_t end) {
    std::vector<int8_t> chosen;
    for (const auto task : c10::irange(begin, end)) {
      const int64_t group = task / blocks;
      const int64_t first = task % blocks * block;
      const int64_t count = std::min(block, group_out - first);
      const int64_t row = group * group_out + first;
      const int8_t* rows = weight + row * kernel_taps * channels;
      int64_t stride = kernel_taps * channels;
      if (!in_order) {
        chosen.resize(count * depth);
        for (const auto o : c10::irange(count)) {
          for (const auto t : c10::irange(taps)) {
            std::copy_n(rows + o * stride + phase.tap[t] * channels, channels,
                        chosen.data() + o * depth + t * channels);
          }
        }
        rows = chosen.data();
        stride = depth;
      }
      uint8_t* to = data + group * packed.group_bytes + kernels.packed_size(first, depth);
      kernels.pack(rows, count, depth, stride, to, packed.correction.data() + row);
    }
  });
  for (int32_t& sum : packed.correction) sum *= p.input_zero_point;
  return packed;
}

/// How the matrix product is cut into tasks: rows so many that the tile of A stays in the second
/// cache, columns only where there are too few rows for all threads.
struct Tiling {
  int64_t rows, row_blocks, panel, panels, column_tasks;
};

Tiling choose_tiling(const ConvProblem& p, const Phase& phase, const cpu::GemmKernels& kernels,
                     int64_t depth) {
  constexpr int64_t kTileBytes = 192 * 1024;
  constexpr int64_t kRowStep = 24;  // a multiple of every kernel's number of rows
  const int64_t total = p.batch * phase.size[0] * phase.size[1];
  const int64_t row_bytes = std::max<int64_t>(1, depth * kernels.element_size);
  Tiling t{};
  t.rows = std::clamp<int64_t>(kTileBytes / row_bytes / kRowStep, 1, 4) * kRowStep;
  t.rows = std::min(t.rows, rounded_up(total, kRowStep));
  t.row_blocks = (total + t.rows - 1) / t.rows;
  t.panel = kernels.lanes * 4;
  t.panels = (p.out_channels / p.groups + t.panel - 1) / t.panel;
  const int64_t wanted = 2 * at::get_num_threads();
  const int64_t tasks = t.row_blocks * p.groups;
  t.column_tasks = tasks >= wanted ? 1 : std::min(t.panels, (wanted + tasks - 1) / tasks);
  return t;
}

void run_gemm(const ConvProblem& p, const Phase& phase, const ConvOutput& output) {
  const cpu::GemmKernels& kernels = cpu::best_gemm_kernels();
  cpu::GatherGeometry base = geometry(p, phase);
  base.depth = rounded_up(base.taps * base.group_channels, kernels.depth_step);
  const PackedWeights packed = pack_weights(p, phase, kernels);
  const Tiling tiling = choose_tiling(p, phase, kernels, base.depth);
  const int64_t group_out = p.out_channels / p.groups;
  const int64_t total = p.batch * phase.size[0] * phase.size[1];
  // A 1x1 convolution of stride 1 reads the image as it is.
  const bool direct = kernels.element_size == 1 && p.groups == 1 && base.taps == 1 &&
                      base.depth == p.in_channels && base.step_y == 1 && base.step_x == 1 &&
                      base.tap_y[0] == 0 && base.tap_x[0] == 0 && base.grid_height == p.height &&
                      base.grid_width == p.width;
  const int64_t a_stride = base.depth * kernels.element_size;
  const auto* weights = packed.data.const_data_ptr<uint8_t>();

  const int64_t tasks = p.groups * tiling.row_blocks * tiling.column_tasks;
  at::parallel_for(0, tasks, 1, [&](int64_t begin, int64_t end) {
    const std::unique_ptr<uint8_t[]> tile(new uint8_t[direct ? 1 : tiling.rows * a_stride + 1]);
    const std::unique_ptr<int32_t[]> acc(new int32_t[tiling.rows * tiling.panel]);
    std::vector<int64_t> position(tiling.rows);
    for (const auto task : c10::irange(begin, end)) {
      const int64_t part = task % tiling.column_tasks;
      const int64_t first = task / tiling.column_tasks % tiling.row_blocks * tiling.rows;
      const int64_t group = task / (tiling.column_tasks * tiling.row_blocks);
      const int64_t rows = std::min(tiling.rows, total - first);
      const uint8_t* a = p.input + first * p.in_channels;
      if (!direct) {
        cpu::GatherGeometry g = base;
        g.first_channel = group * g.group_channels;
        kernels.gather(g, first, rows, tile.get());
        a = tile.get();
      }
      const int64_t panel_end = tiling.panels * (part + 1) / tiling.column_tasks;
      for (int64_t n = tiling.panels * part / tiling.column_tasks; n < panel_end; ++n) {
        const int64_t column = n * tiling.panel;
        const int64_t columns = std::min(tiling.panel, group_out - column);
        kernels.multiply(a, a_stride, rows, weights + group * packed.group_bytes, column,
                         rounded_up(columns, kernels.lanes), base.depth, acc.get(), tiling.panel);
        const int64_t channel = group * group_out + column;
        positions(p, phase, first, rows, channel, position.data());
        finish(output, packed.correction.data() + channel, channel, acc.get(), tiling.panel, rows,
               columns, position.data());
      }
    }
  });
}

/// Runs `accumulate(first, rows, acc)` over all rows of a phase, and finishes its sums.
template <typename Accumulate>
void run_direct(const ConvProblem& p, const Phase& phase, const ConvOutput& output,
                const std::vector<int32_t>& correction, int64_t acc_stride,
                const Accumulate& accumulate) {
  constexpr int64_t kTileEntries = 16384;
  const int64_t total = p.batch * phase.size[0] * phase.size[1];
  const int64_t rows_per_task = std::clamp<int64_t>(kTileEntries / acc_stride, 1, 256);
  const int64_t tasks = (total + rows_per_task - 1) / rows_per_task;
  at::parallel_for(0, tasks, 1, [&](int64_t begin, int64_t end) {
    const std::unique_ptr<int32_t[]> acc(new int32_t[rows_per_task * acc_stride]);
    std::vector<int64_t> position(rows_per_task);
    for (const auto task : c10::irange(begin, end)) {
      const int64_t first = task * rows_per_task;
      const int64_t rows = std::min(rows_per_task, total - first);
      accumulate(first, rows, acc.get());
      positions(p, phase, first, rows, 0, position.data());
      finish(output, correction.data(), 0, acc.get(), acc_stride, rows, p.out_channels,
             position.data());
    }
  });
}

void run_depthwise(const ConvProblem& p, const Phase& phase, const ConvOutput& output) {
  const cpu::GatherGeometry g = geometry(p, phase);
  const int64_t channels = p.out_channels;
  const int64_t kernel_taps = p.kernel[0] * p.kernel[1];
  const auto* weight = p.weight.const_data_ptr<int8_t>();
  std::vector<int32_t> taps(g.taps * channels);
  std::vector<int32_t> correction(channels, 0);
  for (const auto t : c10::irange(g.taps)) {
    for (const auto c : c10::irange(channels)) {
      const int32_t w = weight[c * kernel_taps + phase.tap[t]];
      taps[t * channels + c] = w;
      correction[c] += w * p.input_zero_point;
    }
  }
  const std::vector<uint8_t> padding(channels, static_cast<uint8_t>(p.input_zero_point));
  const auto& kernels = cpu::depthwise_kernels();
  run_direct(p, phase, output, correction, channels,
             [&](int64_t first, int64_t rows, int32_t* acc) {
               kernels.depthwise(g, taps.data(), padding.data(), first, rows, acc);
             });
}

/// Weights of small groups in the order of DepthwiseKernels::grouped, with what the sums are to be
/// corrected by.
struct GroupedWeights {
  std::vector<int32_t> channel;  ///< the first input channel of each lane
  std::vector<int32_t> pairs, correction;
};

GroupedWeights pack_grouped(const ConvProblem& p, const Phase& phase, int64_t lanes) {
  const int64_t channels = p.in_channels / p.groups;
  const int64_t group_out = p.out_channels / p.groups;
  const int64_t kernel_taps = p.kernel[0] * p.kernel[1];
  const auto taps = static_cast<int64_t>(phase.tap.size());
  const int64_t steps = (channels + 3) / 4;
  const int64_t padded = rounded_up(p.out_channels, lanes);
  const auto* weight = p.weight.const_data_ptr<int8_t>();
  GroupedWeights out;
  out.channel.assign(padded, 0);
  out.correction.assign(padded, 0);
  out.pairs.assign(taps * steps * padded * 2, 0);
  auto* halves = reinterpret_cast<int16_t*>(out.pairs.data());
  for (const auto o : c10::irange(p.out_channels)) {
    out.channel[o] = static_cast<int32_t>(o / group_out * channels);
    const int64_t block = o / lanes;
    const int64_t lane = o % lanes;
    for (const auto t : c10::irange(taps)) {
      for (const auto c : c10::irange(channels)) {
        const int32_t w = weight[(o * kernel_taps + phase.tap[t]) * channels + c];
        out.correction[o] += w * p.input_zero_point;
        const int64_t vector = ((t * steps + c / 4) * padded / lanes + block) * 2 + c % 2;
        halves[(vector * lanes + lane) * 2 + c % 4 / 2] = static_cast<int16_t>(w);
      }
    }
  }
  return out;
}

void run_grouped(const ConvProblem& p, const Phase& phase, const ConvOutput& output) {
  cpu::GatherGeometry g = geometry(p, phase);
  const auto& kernels = cpu::depthwise_kernels();
  const GroupedWeights weights = pack_grouped(p, phase, kernels.lanes);
  const std::vector<uint8_t> padding(p.in_channels + 4, static_cast<uint8_t>(p.input_zero_point));
  std::vector<uint8_t> last(p.in_channels + 4);
  g.last_pixel = p.input + (p.batch * p.height * p.width - 1) * p.in_channels;
  std::copy_n(g.last_pixel, p.in_channels, last.data());
  run_direct(p, phase, output, weights.correction, rounded_up(p.out_channels, kernels.lanes),
             [&](int64_t first, int64_t rows, int32_t* acc) {
               kernels.grouped(g, weights.channel.data(), p.out_channels, weights.pairs.data(),
                               padding.data(), last.data(), first, rows, acc);
             });
}

/// Whether small groups are better served without a matrix product each. The costs are cycles a
/// pixel, measured: a gather of `lanes` outputs takes ten, copying a tap of one group three, and
/// what a group's product costs beside its steps is forty.
bool prefers_grouped(const ConvProblem& p, const Phase& phase) {
  constexpr int64_t kMaxChannels = int64_t{1} << 30;  // they are indexed in 32 bits
  if (p.groups == 1 || p.in_channels < 3 || p.in_channels > kMaxChannels) return false;
  const auto taps = static_cast<int64_t>(phase.tap.size());
  const int64_t channels = p.in_channels / p.groups;
  const int64_t lanes = cpu::depthwise_kernels().lanes;
  const auto& gemm = cpu::best_gemm_kernels();
  const int64_t grouped =
      rounded_up(p.out_channels, lanes) / lanes * ((channels + 3) / 4) * taps * 10;
  const int64_t steps = rounded_up(taps * channels, gemm.depth_step) / gemm.depth_step;
  const int64_t blocks = rounded_up(p.out_channels / p.groups, gemm.lanes) / gemm.lanes;
  return grouped < p.groups * (taps * 3 + steps * blocks + 40);
}

}  // namespace

void run_quantized_conv(const ConvProblem& problem, const ConvOutput& output) {
  const bool one_to_one = problem.groups > 1 && problem.groups == problem.in_channels &&
                          problem.out_channels == problem.in_channels;
  const auto counts = phase_counts(problem);
  for (const auto i : c10::irange(counts[0] * counts[1])) {
    const Phase phase = make_phase(problem, i / counts[1], i % counts[1]);
    const bool few_taps = static_cast<int64_t>(phase.tap.size()) <= cpu::kMaxDepthwiseTaps;
    if (one_to_one && few_taps) {
      run_depthwise(problem, phase, output);
    } else if (few_taps && prefers_grouped(problem, phase)) {
      run_grouped(problem, phase, output);
    } else {
      run_gemm(problem, phase, output);
    }
  }
}

}  // namespace horizon::ops
