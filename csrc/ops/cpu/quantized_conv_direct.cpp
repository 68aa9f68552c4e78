#include <ATen/Parallel.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <memory>

#include "ops/cpu/kernels/depthwise.h"
#include "ops/cpu/quantized_conv_phase.h"
#include "ops/cpu/thread_scratch.h"

namespace horizon::ops {
namespace {

/// Runs `accumulate(first, rows, acc)` over all rows of a phase, and finishes its sums.
template <typename Accumulate>
void run_rows(const ConvProblem& p, const Phase& phase, const ConvOutput& output,
              int64_t acc_stride, const Accumulate& accumulate) {
  constexpr int64_t kTileEntries = 16384;
  constexpr auto kSumBytes = static_cast<int64_t>(sizeof(int32_t));
  const int64_t total = phase.rows(p);
  const int64_t rows_per_task = std::clamp<int64_t>(kTileEntries / acc_stride, 1, 256);
  const int64_t tasks = (total + rows_per_task - 1) / rows_per_task;
  at::parallel_for(0, tasks, 1, [&](int64_t begin, int64_t end) {
    uint8_t* memory = thread_scratch(
        rows_per_task * (acc_stride * kSumBytes + static_cast<int64_t>(sizeof(int64_t))) + 64);
    auto* position = reinterpret_cast<int64_t*>(memory);
    auto* acc = reinterpret_cast<int32_t*>(position + rows_per_task);
    for (const auto task : c10::irange(begin, end)) {
      const int64_t first = task * rows_per_task;
      const int64_t rows = std::min(rows_per_task, total - first);
      accumulate(first, rows, acc);
      row_positions(p, phase, first, rows, position);
      finish_sums(output, phase.correction.data(), 0, acc, acc_stride, rows, p.weight.out_channels,
                  position);
    }
  });
}

void run_depthwise(const ConvProblem& p, const Phase& phase, const ConvOutput& output) {
  const cpu::GatherGeometry g = phase_geometry(p, phase);
  const int64_t channels = p.in_channels;
  const int64_t words = (phase.tap_count[1] + kPackedDepth - 1) / kPackedDepth;
  const int8_t* packed = p.packed + phase.taps->data;
  std::vector<int32_t> taps(g.taps * channels);
  for (const auto t : c10::irange(g.taps)) {
    const int64_t row = t / phase.tap_count[1];
    const int64_t column = t % phase.tap_count[1];
    const int8_t* from = packed + (row * words + column / kPackedDepth) * channels * kPackedDepth;
    for (const auto c : c10::irange(channels)) {
      taps[t * channels + c] = from[c * kPackedDepth + column % kPackedDepth];
    }
  }
  const std::vector<uint8_t> padding(channels, static_cast<uint8_t>(p.input_zero_point));
  const auto& kernels = cpu::depthwise_kernels();
  run_rows(p, phase, output, channels, [&](int64_t first, int64_t rows, int32_t* acc) {
    kernels.depthwise(g, taps.data(), padding.data(), first, rows, acc);
  });
}

/// From codes to codes, row by row of the output.
void run_depthwise_rows(const ConvProblem& p, const Phase& phase, const ConvOutput& output,
                        const cpu::DepthwiseLayerKernels& kernels) {
  const int64_t channels = p.in_channels;
  const std::vector<uint8_t> padding(channels, static_cast<uint8_t>(p.input_zero_point));
  cpu::DepthwiseLayer layer{phase_geometry(p, phase), phase.tap_count[0], phase.tap_count[1],
                            padding.data(),           output.epilogue,    phase.step[1] * channels};
  layer.epilogue.correction = phase.correction.data();
  std::vector<uint8_t> prepared(
      kernels.prepared_bytes(layer.tap_rows, layer.tap_columns, channels));
  kernels.prepare(layer, p.packed + phase.taps->data, prepared.data());

  const int64_t rows = p.batch * phase.size[0];
  const int64_t blocks = (channels + kernels.block - 1) / kernels.block;
  // A row is a small task; where there are few, blocks of channels are shared as well.
  const int64_t parts = rows < 8 * at::get_num_threads() ? blocks : 1;
  const int64_t cycles = std::max<int64_t>(1, phase.size[1] * channels / parts);
  const int64_t pointers = kernels.row_span(layer) * layer.tap_rows;
  at::parallel_for(0, rows * parts, 1 + kSerialCycles / cycles, [&](int64_t begin, int64_t end) {
    auto* pixels = reinterpret_cast<const uint8_t**>(
        thread_scratch(pointers * static_cast<int64_t>(sizeof(uint8_t*))));
    for (const auto task : c10::irange(begin, end)) {
      const int64_t row = task / parts;
      const int64_t part = task % parts;
      const int64_t y = phase.first[0] + row % phase.size[0] * phase.step[0];
      const int64_t line = row / phase.size[0] * p.out_height + y;
      kernels.run_row(layer, prepared.data(), row, blocks * part / parts,
                      blocks * (part + 1) / parts, pixels,
                      output.codes + (line * p.out_width + phase.first[1]) * channels);
    }
  });
}

/// Weights of small groups in the order of DepthwiseKernels::grouped.
std::vector<int32_t> grouped_pairs(const ConvProblem& p, const Phase& phase, int64_t lanes) {
  const auto taps = static_cast<int64_t>(phase.tap_y.size());
  const int64_t steps = taps * ((p.weight.group_in + kPackedDepth - 1) / kPackedDepth);
  const int64_t blocks = rounded_up(p.weight.out_channels, lanes) / lanes;
  const int8_t* packed = p.packed + phase.taps->data;
  std::vector<int32_t> pairs(steps * blocks * 2 * lanes);
  auto* halves = reinterpret_cast<int16_t*>(pairs.data());
  for (const auto step : c10::irange(steps)) {
    for (const auto o : c10::irange(blocks * lanes)) {
      const int8_t* four =
          packed +
          ((o / kPackedLanes * steps + step) * kPackedLanes + o % kPackedLanes) * kPackedDepth;
      for (const auto c : c10::irange(kPackedDepth)) {
        const int64_t vector = (step * blocks + o / lanes) * 2 + c % 2;
        halves[(vector * lanes + o % lanes) * 2 + c / 2] = four[c];
      }
    }
  }
  return pairs;
}

void run_grouped(const ConvProblem& p, const Phase& phase, const ConvOutput& output) {
  cpu::GatherGeometry g = phase_geometry(p, phase);
  const auto& kernels = cpu::depthwise_kernels();
  const int64_t padded = rounded_up(p.weight.out_channels, kernels.lanes);
  const std::vector<int32_t> pairs = grouped_pairs(p, phase, kernels.lanes);
  std::vector<int32_t> channel(padded, 0);
  for (const auto o : c10::irange(p.weight.out_channels)) {
    channel[o] = static_cast<int32_t>(o / p.weight.group_out * p.weight.group_in);
  }
  const std::vector<uint8_t> padding(p.in_channels + 4, static_cast<uint8_t>(p.input_zero_point));
  std::vector<uint8_t> last(p.in_channels + 4);
  g.last_pixel = g.input_end - p.in_channels;
  std::copy_n(g.last_pixel, p.in_channels, last.data());
  run_rows(p, phase, output, padded, [&](int64_t first, int64_t rows, int32_t* acc) {
    kernels.grouped(g, channel.data(), p.weight.out_channels, pairs.data(), padding.data(),
                    last.data(), first, rows, acc);
  });
}

/// Outputs that no tap reaches: their sums are 0.
void run_empty(const ConvProblem& p, const Phase& phase, const ConvOutput& output) {
  const int64_t channels = p.weight.out_channels;
  run_rows(p, phase, output, channels,
           [&](int64_t, int64_t rows, int32_t* acc) { std::fill_n(acc, rows * channels, 0); });
}

}  // namespace

void run_direct(const ConvProblem& p, const Phase& phase, const ConvOutput& output) {
  if (phase.taps == nullptr) {
    log_phase(p, phase, "no taps");
    run_empty(p, phase, output);
  } else if (p.layout.order == WeightOrder::kDepthwise) {
    const auto* kernels = cpu::depthwise_layer_kernels();
    if (kernels != nullptr && output.codes != nullptr && output.epilogue.skip == nullptr) {
      log_phase(p, phase, "depthwise, vnni");
      run_depthwise_rows(p, phase, output, *kernels);
    } else {
      log_phase(p, phase, "depthwise");
      run_depthwise(p, phase, output);
    }
  } else {
    log_phase(p, phase, "small groups");
    run_grouped(p, phase, output);
  }
}

}  // namespace horizon::ops
