#include "ops/cpu/quantized_conv_run.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <memory>

#include "ops/cpu/kernels/gemm.h"
#include "ops/cpu/quantized_conv_phase.h"

namespace horizon::ops {
namespace {

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
  cpu::GatherGeometry base = phase_geometry(p, phase);
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
        row_positions(p, phase, first, rows, channel, position.data());
        finish_sums(output, packed.correction.data() + channel, channel, acc.get(), tiling.panel,
                    rows, columns, position.data());
      }
    }
  });
}

}  // namespace

void run_quantized_conv(const ConvProblem& problem, const ConvOutput& output) {
  const auto counts = phase_counts(problem);
  for (const auto i : c10::irange(counts[0] * counts[1])) {
    const Phase phase = make_phase(problem, i / counts[1], i % counts[1]);
    if (prefers_direct(problem, phase)) {
      run_direct(problem, phase, output);
    } else {
      run_gemm(problem, phase, output);
    }
  }
}

}  // namespace horizon::ops
