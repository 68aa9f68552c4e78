#pragma once

// Marks the arithmetic that CUDA kernels share with the CPU. Always inlined on the host: kernel
// files are compiled once per instruction set, and an out-of-line copy built with AVX-512 could
// otherwise be the one that the linker keeps for every path.
#if defined(__CUDACC__)
#define HORIZON_HD __host__ __device__ __forceinline__
#else
#define HORIZON_HD inline __attribute__((always_inline))
#endif
