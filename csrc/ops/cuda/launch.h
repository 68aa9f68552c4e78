#pragma once

#include <cstdint>

#include "quant/macros.h"

#if defined(__CUDACC__)
#include <c10/cuda/CUDAException.h>
#include <cuda_runtime.h>
#else
#include <memory>
#include <vector>
#endif

namespace horizon::ops::cuda {

/// How many blocks a kernel has; the limits are CUDA's (2^31 - 1 in x, 65535 in y and z).
struct Grid {
  uint32_t x = 1, y = 1, z = 1;
};

/// Where a thread stands. Threads of a block are numbered in one dimension.
struct Thread {
  Grid block;        ///< of this thread
  Grid grid;         ///< number of blocks
  uint32_t index;    ///< in its block
  uint32_t threads;  ///< of a block
};

/// What a body without memory between its phases names as State and as Shared.
struct Nothing {};

// A kernel is a body that runs on the device and, for tests, on the host over the same indices:
//
//   struct Body {
//     static constexpr uint32_t kThreads = 256;   // of a block
//     static constexpr int kPhases = 2;
//     struct Shared { ... };                       // one for each block, not initialized
//     struct State { ... };                        // one for each thread, not initialized
//     HORIZON_HD void operator()(int phase, const Thread& t, State& state, Shared& shared) const;
//     // and its arguments: pointers and numbers, at most 4 KB
//   };
//
// All threads of a block end a phase before one begins the next; blocks run in any order. A thread
// with nothing to do in a phase returns from it. No atomics: results do not depend on the order.

#if defined(__CUDACC__)

template <typename Body>
__global__ void __launch_bounds__(Body::kThreads) run_body(const Body body) {
  __shared__ typename Body::Shared shared;
  typename Body::State state;
  const Thread thread{{blockIdx.x, blockIdx.y, blockIdx.z},
                      {gridDim.x, gridDim.y, gridDim.z},
                      threadIdx.x,
                      Body::kThreads};
#pragma unroll
  for (int phase = 0; phase < Body::kPhases; ++phase) {
    if (phase != 0) __syncthreads();
    body(phase, thread, state, shared);
  }
}

/// Starts `body` on `stream`. A grid with no block is not started.
template <typename Body>
void launch(const Grid& grid, const Body& body, cudaStream_t stream) {
  static_assert(sizeof(Body) <= 4096);
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  run_body<<<dim3(grid.x, grid.y, grid.z), Body::kThreads, 0, stream>>>(body);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

#else

/// Runs `body` here, block by block, phase by phase, thread by thread; `backwards` turns the order
/// of blocks and of threads around, which no result may depend on.
template <typename Body>
void run_on_host(const Grid& grid, const Body& body, bool backwards = false) {
  const uint64_t blocks = uint64_t{grid.x} * grid.y * grid.z;
  // One block's memory, uninitialized between blocks as on the device; bytes of a pattern that no
  // test expects.
  const auto shared = std::make_unique<typename Body::Shared>();
  std::vector<typename Body::State> states(Body::kThreads);
  for (uint64_t i = 0; i < blocks; ++i) {
    const uint64_t b = backwards ? blocks - 1 - i : i;
    const Grid block{static_cast<uint32_t>(b % grid.x), static_cast<uint32_t>(b / grid.x % grid.y),
                     static_cast<uint32_t>(b / grid.x / grid.y)};
    for (int phase = 0; phase < Body::kPhases; ++phase) {
      for (uint32_t j = 0; j < Body::kThreads; ++j) {
        const uint32_t index = backwards ? Body::kThreads - 1 - j : j;
        body(phase, Thread{block, grid, index, Body::kThreads}, states[index], *shared);
      }
    }
  }
}

#endif

}  // namespace horizon::ops::cuda
