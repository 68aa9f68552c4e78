#include "ops/cpu/dispatch.h"

#include <cstdlib>
#include <string>

#include "ops/cpu/kernels/average_pool.h"
#include "ops/cpu/kernels/codes.h"
#include "ops/cpu/kernels/depthwise.h"
#include "ops/cpu/kernels/elementwise.h"
#include "ops/cpu/kernels/fake_quantize.h"
#include "ops/cpu/kernels/fused.h"
#include "ops/cpu/kernels/gemm.h"
#include "ops/cpu/kernels/max_pool.h"
#include "ops/cpu/kernels/observe.h"

namespace horizon::cpu {
namespace {

std::string lower_env(const char* name) {
  const char* raw = std::getenv(name);
  std::string text = raw == nullptr ? "" : raw;
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

Capability detect() {
#if defined(HORIZON_HAVE_AVX512)
  const std::string wish = lower_env("ATEN_CPU_CAPABILITY");
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 &&
                    __builtin_cpu_supports("f16c") != 0;
  const bool avx512 =
      avx2 && __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
      __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512dq") != 0;
  if (wish == "default" || !avx2) return Capability::kGeneric;
  if (wish == "avx2" || !avx512) return Capability::kAvx2;
  return Capability::kAvx512;
#else
  return Capability::kGeneric;
#endif
}

bool detect_vnni() {
#if defined(HORIZON_HAVE_AVX512)
  if (capability() != Capability::kAvx512) return false;
  // oneDNN's names of the sets without VNNI, lowest first.
  const std::string limit = lower_env("ONEDNN_MAX_CPU_ISA");
  for (const char* without : {"sse41", "avx", "avx2", "avx2_vnni", "avx2_vnni_2", "avx512_core"}) {
    if (limit == without) return false;
  }
  return __builtin_cpu_supports("avx512vnni") != 0;
#else
  return false;
#endif
}

}  // namespace

Capability capability() {
  static const Capability value = detect();
  return value;
}

bool has_vnni() {
  static const bool value = detect_vnni();
  return value;
}

const char* capability_name() {
  if (has_vnni()) return "avx512_vnni";
  switch (capability()) {
    case Capability::kAvx512:
      return "avx512";
    case Capability::kAvx2:
      return "avx2";
    default:
      return "generic";
  }
}

HORIZON_DEFINE_SELECTOR(AveragePoolKernels, average_pool_kernels);
HORIZON_DEFINE_SELECTOR(CodesKernels, codes_kernels);
HORIZON_DEFINE_SELECTOR(DepthwiseKernels, depthwise_kernels);
HORIZON_DEFINE_SELECTOR(ElementwiseKernels, elementwise_kernels);
HORIZON_DEFINE_SELECTOR(FakeQuantizeKernels, fake_quantize_kernels);
HORIZON_DEFINE_SELECTOR(FusedKernels, fused_kernels);
HORIZON_DEFINE_SELECTOR(GemmKernels, gemm_kernels);
HORIZON_DEFINE_SELECTOR(MaxPoolKernels, max_pool_kernels);
HORIZON_DEFINE_SELECTOR(ObserveKernels, observe_kernels);

const GemmKernels& best_gemm_kernels() {
#if defined(HORIZON_HAVE_AVX512)
  if (has_vnni()) return avx512::gemm_vnni_kernels();
#endif
  return gemm_kernels();
}

}  // namespace horizon::cpu
