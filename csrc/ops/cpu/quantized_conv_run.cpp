#include "ops/cpu/quantized_conv_run.h"

#include <ATen/Parallel.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <vector>

#include "ops/cpu/kernels/gemm.h"
#include "ops/cpu/quantized_conv_phase.h"
#include "ops/cpu/thread_scratch.h"

namespace horizon::ops {
namespace {

/// One phase as matrix products, group by group.
struct Product {
  const ConvProblem& p;
  const Phase& phase;
  const ConvOutput& output;
  const cpu::GemmKernels& kernels;
  cpu::GatherGeometry geometry;
  int64_t total;              ///< rows
  int64_t depth;              ///< of a packed row of weights
  int64_t a_stride;           ///< bytes of a row of codes
  int64_t panels;             ///< of kernels.panel blocks of outputs of a group
  bool direct;                ///< the image is the matrix
  std::vector<int32_t> none;  ///< the correction of centred codes

  const int32_t* correction() const { return none.empty() ? phase.correction.data() : none.data(); }
};

/// How it is cut into tasks.
struct Tiling {
  int64_t rows, row_blocks, column_tasks;
  int64_t count(int64_t groups) const { return row_blocks * column_tasks * groups; }
};

/// A 1x1 convolution of stride 1 reads the image as it is.
bool is_direct(const ConvProblem& p, const cpu::GatherGeometry& g,
               const cpu::GemmKernels& kernels) {
  return kernels.element_size == 1 && p.weight.groups == 1 && g.taps == 1 &&
         g.depth == p.in_channels && g.step_y == 1 && g.step_x == 1 && g.tap_y[0] == 0 &&
         g.tap_x[0] == 0 && g.grid_height == p.height && g.grid_width == p.width;
}

Product make_product(const ConvProblem& p, const Phase& phase, const ConvOutput& output) {
  const cpu::GemmKernels& kernels = cpu::best_gemm_kernels();
  Product m{p, phase, output, kernels, phase_geometry(p, phase), phase.rows(p), 0, 0, 0, false, {}};
  m.depth = packed_depth(p.weight, WeightOrder::kDense, m.geometry.taps);
  m.geometry.depth = kernels.padded_depth(m.depth);
  m.a_stride = m.geometry.depth * kernels.element_size;
  const int64_t blocks = (p.weight.group_out + kPackedLanes - 1) / kPackedLanes;
  m.panels = (blocks + kernels.panel - 1) / kernels.panel;
  m.direct = is_direct(p, m.geometry, kernels);
  if (kernels.element_size == 2) m.none.assign(phase.correction.size(), 0);
  return m;
}

/// Rows so many that the codes stay in the second cache; as many tasks as threads, or a multiple.
/// Threads share the rows, and where there are fewer rows than columns the columns: each then reads
/// its part of the weights once.
Tiling choose_tiling(const Product& m) {
  constexpr int64_t kMaxRows = 288;
  constexpr int64_t kFirstCache = 40 * 1024;
  const int64_t step = m.kernels.row_chunk;
  const int64_t threads = at::get_num_threads();
  const int64_t groups = m.p.weight.groups;
  int64_t most = std::max(step, m.kernels.tile_bytes / m.a_stride / step * step);
  const int64_t weight_bytes = m.p.weight.group_out * m.depth;
  if (!m.direct && weight_bytes <= kFirstCache) {
    // So few weights are near in any case; gathered codes are to stay in the first cache.
    most = std::min(most, std::max(step, kFirstCache / 2 / m.a_stride / step * step));
  } else if (weight_bytes <= m.kernels.tile_bytes) {
    most = std::min(most, std::max(step, kMaxRows / step * step));
  }  // Others do not stay in the second cache, and are read once for every block of rows.
  Tiling t{0, (m.total + most - 1) / most, 1};
  if (groups < threads && m.p.weight.group_out > m.total) {
    t.column_tasks = std::min(m.panels, threads);
  } else if (groups < threads && m.total > step) {
    t.row_blocks = rounded_up(t.row_blocks, threads);
  }
  t.rows = rounded_up((m.total + t.row_blocks - 1) / t.row_blocks, m.kernels.row_tile);
  t.row_blocks = (m.total + t.rows - 1) / t.rows;
  return t;
}

/// This thread's memory for a block of rows.
struct Buffers {
  uint8_t* codes;
  uint8_t* weights;
  int32_t* sums;
  int64_t* position;

  Buffers(const Product& m, int64_t rows) {
    const int64_t padded = rounded_up(rows, m.kernels.row_tile);
    const int64_t code_bytes = rounded_up(padded * m.a_stride + cpu::kGatherSlack, 64);
    const int64_t weight_bytes = rounded_up(m.kernels.expanded_bytes(m.depth), 64);
    const int64_t sum_bytes = rounded_up(m.kernels.row_chunk, m.kernels.row_tile) *
                              m.kernels.panel * kPackedLanes *
                              static_cast<int64_t>(sizeof(int32_t));
    codes = thread_scratch(code_bytes + weight_bytes + sum_bytes +
                           padded * static_cast<int64_t>(sizeof(int64_t)));
    weights = codes + code_bytes;
    sums = reinterpret_cast<int32_t*>(weights + weight_bytes);
    position = reinterpret_cast<int64_t*>(weights + weight_bytes + sum_bytes);
  }
};

/// Panels [begin, end) of a block of rows.
void multiply_block(const Product& m, const Buffers& buffers, const uint8_t* codes, int64_t rows,
                    int64_t group, int64_t begin, int64_t end) {
  const auto& kernels = m.kernels;
  const int64_t group_out = m.p.weight.group_out;
  const int64_t width = kernels.panel * kPackedLanes;
  const int8_t* matrix =
      m.p.packed + m.phase.taps->data +
      group * packed_matrix_bytes(m.p.weight, WeightOrder::kDense, *m.phase.taps);
  for (const auto n : c10::irange(begin, end)) {
    const int64_t columns = std::min(width, group_out - n * width);
    const int64_t blocks = (columns + kPackedLanes - 1) / kPackedLanes;
    const void* weights = matrix + n * width * m.depth;
    if (kernels.expand != nullptr) {
      kernels.expand(matrix + n * width * m.depth, blocks, m.depth, buffers.weights);
      weights = buffers.weights;
    }
    for (int64_t r = 0; r < rows; r += kernels.row_chunk) {
      const int64_t count = std::min(kernels.row_chunk, rows - r);
      kernels.multiply(codes + r * m.a_stride, m.a_stride, count, weights, blocks, m.depth,
                       buffers.sums, width);
      finish_sums(m.output, m.correction(), group * group_out + n * width, buffers.sums, width,
                  count, columns, buffers.position + r);
    }
  }
}

void run_tasks(const Product& m, const Tiling& tiling, int64_t begin, int64_t end) {
  const Buffers buffers(m, tiling.rows);
  cpu::GatherGeometry geometry = m.geometry;
  m.kernels.begin(m.depth);
  for (const auto task : c10::irange(begin, end)) {
    const int64_t first = task % tiling.row_blocks * tiling.rows;
    const int64_t part = task / tiling.row_blocks % tiling.column_tasks;
    const int64_t group = task / (tiling.row_blocks * tiling.column_tasks);
    const int64_t rows = std::min(tiling.rows, m.total - first);
    const uint8_t* codes = m.p.input + first * m.p.in_channels;
    if (!m.direct) {
      geometry.first_channel = group * geometry.group_channels;
      m.kernels.gather(geometry, first, rows, buffers.codes);
      codes = buffers.codes;
    }
    row_positions(m.p, m.phase, first, rows, buffers.position);
    multiply_block(m, buffers, codes, rows, group, m.panels * part / tiling.column_tasks,
                   m.panels * (part + 1) / tiling.column_tasks);
  }
  m.kernels.end();
}

void run_dense(const ConvProblem& p, const Phase& phase, const ConvOutput& output) {
  const Product m = make_product(p, phase, output);
  log_phase(p, phase, m.kernels.name);
  const Tiling tiling = choose_tiling(m);
  const int64_t tasks = tiling.count(p.weight.groups);
  const int64_t cycles =
      m.total * p.weight.out_channels * (1 + m.depth / m.kernels.products_per_cycle);
  at::parallel_for(0, tasks, cycles < kSerialCycles ? tasks : 1,
                   [&](int64_t begin, int64_t end) { run_tasks(m, tiling, begin, end); });
}

}  // namespace

void run_quantized_conv(const ConvProblem& problem, const ConvOutput& output) {
  const auto counts = phase_counts(problem);
  for (const auto i : c10::irange(counts[0] * counts[1])) {
    const Phase phase = make_phase(problem, i / counts[1], i % counts[1]);
    if (phase.taps == nullptr || problem.layout.order != WeightOrder::kDense) {
      run_direct(problem, phase, output);
#if defined(HORIZON_HAVE_AVX512)
    } else if (cpu::has_amx()) {
      run_amx(problem, phase, output);
#endif
    } else {
      run_dense(problem, phase, output);
    }
  }
}

}  // namespace horizon::ops
