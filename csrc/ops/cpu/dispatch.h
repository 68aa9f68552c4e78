#pragma once

namespace horizon::cpu {

/// Instruction sets that kernel files are compiled for. Results are the same bits on each.
enum class Capability { kGeneric, kAvx2, kAvx512 };

/// The best set that this machine has and that the environment allows; read once.
///
/// ATEN_CPU_CAPABILITY (default | avx2 | avx512) and ONEDNN_MAX_CPU_ISA are obeyed as PyTorch and
/// oneDNN obey them. HORIZON_CPU_CAPABILITY (generic | avx2 | avx512 | vnni | amx) limits this
/// library alone and comes before both.
Capability capability();

/// Whether AVX-512 VNNI may be used: present, allowed, and `capability()` is kAvx512; read once.
bool has_vnni();

/// Whether AMX's int8 tiles may be used: present, granted by the system, allowed, and has_vnni();
/// read once.
bool has_amx();

/// "generic", "avx2", "avx512", "avx512_vnni" or "avx512_amx", for logs and reports.
const char* capability_name();

}  // namespace horizon::cpu

/// Declares `const Table& name();` once per instruction set. A kernel file defines it in
/// `namespace horizon::cpu::HORIZON_CAPABILITY`.
#define HORIZON_DECLARE_KERNELS(Table, name) \
  namespace generic {                        \
  const Table& name();                       \
  }                                          \
  namespace avx2 {                           \
  const Table& name();                       \
  }                                          \
  namespace avx512 {                         \
  const Table& name();                       \
  }                                          \
  const Table& name()

/// Defines the selecting `name()`; used once per table, in dispatch.cpp.
#if defined(HORIZON_HAVE_AVX512)
#define HORIZON_DEFINE_SELECTOR(Table, name) \
  const Table& name() {                      \
    switch (capability()) {                  \
      case Capability::kAvx512:              \
        return avx512::name();               \
      case Capability::kAvx2:                \
        return avx2::name();                 \
      default:                               \
        return generic::name();              \
    }                                        \
  }                                          \
  static_assert(true)
#else
#define HORIZON_DEFINE_SELECTOR(Table, name)      \
  const Table& name() { return generic::name(); } \
  static_assert(true)
#endif
