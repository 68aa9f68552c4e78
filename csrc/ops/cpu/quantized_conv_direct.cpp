#include <ATen/Parallel.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <memory>

#include "ops/cpu/kernels/depthwise.h"
#include "ops/cpu/quantized_conv_phase.h"

namespace horizon::ops {
namespace {

/// Runs `accumulate(first, rows, acc)` over all rows of a phase, and finishes its sums.
template <typename Accumulate>
void run_rows(const ConvProblem& p, const Phase& phase, const ConvOutput& output,
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
      row_positions(p, phase, first, rows, 0, position.data());
      finish_sums(output, correction.data(), 0, acc.get(), acc_stride, rows, p.out_channels,
                  position.data());
    }
  });
}

void run_depthwise(const ConvProblem& p, const Phase& phase, const ConvOutput& output) {
  const cpu::GatherGeometry g = phase_geometry(p, phase);
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
  run_rows(p, phase, output, correction, channels, [&](int64_t first, int64_t rows, int32_t* acc) {
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
  cpu::GatherGeometry g = phase_geometry(p, phase);
  const auto& kernels = cpu::depthwise_kernels();
  const GroupedWeights weights = pack_grouped(p, phase, kernels.lanes);
  const std::vector<uint8_t> padding(p.in_channels + 4, static_cast<uint8_t>(p.input_zero_point));
  std::vector<uint8_t> last(p.in_channels + 4);
  g.last_pixel = p.input + (p.batch * p.height * p.width - 1) * p.in_channels;
  std::copy_n(g.last_pixel, p.in_channels, last.data());
  run_rows(p, phase, output, weights.correction, rounded_up(p.out_channels, kernels.lanes),
           [&](int64_t first, int64_t rows, int32_t* acc) {
             kernels.grouped(g, weights.channel.data(), p.out_channels, weights.pairs.data(),
                             padding.data(), last.data(), first, rows, acc);
           });
}

/// Whether small groups are better served without a matrix product each, by rough costs in cycles
/// a pixel: a gather of `lanes` outputs takes ten, copying a tap of one group three, and what a
/// group's product costs beside its steps is forty.
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

bool one_to_one(const ConvProblem& p) {
  return p.groups > 1 && p.groups == p.in_channels && p.out_channels == p.in_channels;
}

}  // namespace

bool prefers_direct(const ConvProblem& p, const Phase& phase) {
  if (static_cast<int64_t>(phase.tap.size()) > cpu::kMaxDepthwiseTaps) return false;
  return one_to_one(p) || prefers_grouped(p, phase);
}

void run_direct(const ConvProblem& p, const Phase& phase, const ConvOutput& output) {
  if (one_to_one(p)) {
    run_depthwise(p, phase, output);
  } else {
    run_grouped(p, phase, output);
  }
}

}  // namespace horizon::ops
