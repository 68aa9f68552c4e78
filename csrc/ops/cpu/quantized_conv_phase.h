#pragma once

#include <array>
#include <vector>

#include "ops/cpu/kernels/gemm.h"
#include "ops/cpu/quantized_conv_run.h"

// Parts of run_quantized_conv.
namespace horizon::ops {

/// The output positions (first + i * step) of a grid, and the taps that reach them. A convolution
/// has one phase; a transposed one has one for each residue of the output position modulo the
/// stride, which is an ordinary convolution of stride 1.
struct Phase {
  std::array<int64_t, 2> first, step, size;
  std::array<int64_t, 2> input_step;
  const TapClass* taps;  ///< null where no tap reaches the phase
  std::array<int64_t, 2> tap_count;
  std::vector<int64_t> tap_y, tap_x;  ///< where taps read, relative to i * input_step
  std::vector<int32_t> correction;    ///< -z * sum(W) per output channel, and 32 zeros

  /// How many rows the matrix of input codes has.
  int64_t rows(const ConvProblem& p) const { return p.batch * size[0] * size[1]; }
};

/// How many phases a problem has, by axis.
std::array<int64_t, 2> phase_counts(const ConvProblem& p);

/// The phase of output residues y and x.
Phase make_phase(const ConvProblem& p, int64_t y, int64_t x);

/// The phase as a matrix of codes; the caller sets `depth` and the group's first channel.
cpu::GatherGeometry phase_geometry(const ConvProblem& p, const Phase& phase);

/// Offsets of output rows [first, first + rows) of a phase, in entries.
void row_positions(const ConvProblem& p, const Phase& phase, int64_t first, int64_t rows,
                   int64_t* out);

/// Finishes a tile of sums whose first column is `channel`, at the row positions given.
/// `correction` is that of all output channels.
void finish_sums(const ConvOutput& output, const int32_t* correction, int64_t channel,
                 const int32_t* acc, int64_t acc_stride, int64_t rows, int64_t columns,
                 const int64_t* position);

/// Says which kernel the phase takes, where HORIZON_LOG asks for that.
void log_phase(const ConvProblem& p, const Phase& phase, const char* kernel);

/// Runs a phase whose layers are packed as kDepthwise or kGrouped, or that no tap reaches.
void run_direct(const ConvProblem& p, const Phase& phase, const ConvOutput& output);

/// Runs a phase on AMX tiles. Only where has_amx().
void run_amx(const ConvProblem& p, const Phase& phase, const ConvOutput& output);

/// Below so many cycles, roughly, a second thread costs more than it saves.
inline constexpr int64_t kSerialCycles = 16384;

inline int64_t rounded_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

}  // namespace horizon::ops
