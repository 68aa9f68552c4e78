#include "ops/cpu/dispatch.h"

#include "ops/cpu/kernels/average_pool.h"
#include "ops/cpu/kernels/codes.h"
#include "ops/cpu/kernels/depthwise.h"
#include "ops/cpu/kernels/elementwise.h"
#include "ops/cpu/kernels/fake_quantize.h"
#include "ops/cpu/kernels/fused.h"
#include "ops/cpu/kernels/gemm.h"
#include "ops/cpu/kernels/lookup.h"
#include "ops/cpu/kernels/max_pool.h"
#include "ops/cpu/kernels/observe.h"
#include "ops/cpu/kernels/transpose.h"

namespace horizon::cpu {
HORIZON_DEFINE_SELECTOR(AveragePoolKernels, average_pool_kernels);
HORIZON_DEFINE_SELECTOR(CodesKernels, codes_kernels);
HORIZON_DEFINE_SELECTOR(DepthwiseKernels, depthwise_kernels);
HORIZON_DEFINE_SELECTOR(ElementwiseKernels, elementwise_kernels);
HORIZON_DEFINE_SELECTOR(FakeQuantizeKernels, fake_quantize_kernels);
HORIZON_DEFINE_SELECTOR(FusedKernels, fused_kernels);
HORIZON_DEFINE_SELECTOR(GemmKernels, gemm_kernels);
HORIZON_DEFINE_SELECTOR(LookupKernels, lookup_kernels);
HORIZON_DEFINE_SELECTOR(MaxPoolKernels, max_pool_kernels);
HORIZON_DEFINE_SELECTOR(ObserveKernels, observe_kernels);
HORIZON_DEFINE_SELECTOR(TransposeKernels, transpose_kernels);

const GemmKernels& best_gemm_kernels() {
#if defined(HORIZON_HAVE_AVX512)
  if (has_vnni()) return avx512::gemm_vnni_kernels();
#endif
  return gemm_kernels();
}

const DepthwiseLayerKernels* depthwise_layer_kernels() {
#if defined(HORIZON_HAVE_AVX512)
  if (has_vnni()) return &avx512::depthwise_vnni_kernels();
#endif
  return nullptr;
}

}  // namespace horizon::cpu
