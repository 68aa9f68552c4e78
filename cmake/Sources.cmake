# The only list of sources. Paths are relative to the project root.

# Kernels on raw pointers, without torch headers. Each file is compiled once per instruction set
# (HORIZON_CAPABILITY = generic, avx2, avx512) and chosen at run time (csrc/ops/cpu/dispatch.h).
set(HORIZON_KERNEL_SOURCES
    csrc/ops/cpu/kernels/fake_quantize.cpp
    csrc/ops/cpu/kernels/observe.cpp
    csrc/ops/cpu/kernels/fused.cpp
    csrc/ops/cpu/kernels/fused_forward.cpp
    csrc/ops/cpu/kernels/fused_statistics.cpp
    csrc/ops/cpu/kernels/fused_backward.cpp
    csrc/ops/cpu/kernels/gemm.cpp
    csrc/ops/cpu/kernels/gemm_vnni.cpp
    csrc/ops/cpu/kernels/conv_amx.cpp
    csrc/ops/cpu/kernels/depthwise.cpp
    csrc/ops/cpu/kernels/depthwise_vnni.cpp
    csrc/ops/cpu/kernels/codes.cpp
    csrc/ops/cpu/kernels/average_pool.cpp
    csrc/ops/cpu/kernels/elementwise.cpp
    csrc/ops/cpu/kernels/lookup.cpp
    csrc/ops/cpu/kernels/max_pool.cpp)

# Ops: checked entries and schemas, and their backends.
set(HORIZON_OP_SOURCES
    csrc/ops/checks.cpp
    csrc/ops/quantizer.cpp
    csrc/ops/fake_quantize.cpp
    csrc/ops/cpu/fake_quantize.cpp
    csrc/ops/meta/fake_quantize.cpp
    csrc/ops/autograd/fake_quantize.cpp
    csrc/ops/observe.cpp
    csrc/ops/cpu/observe.cpp
    csrc/ops/meta/observe.cpp
    csrc/ops/autograd/observe.cpp
    csrc/ops/quantize_activation.cpp
    csrc/ops/cpu/quantize_activation.cpp
    csrc/ops/meta/quantize_activation.cpp
    csrc/ops/autograd/quantize_activation.cpp
    csrc/ops/dense_weight.cpp
    csrc/ops/weights.cpp
    csrc/ops/cpu/weights.cpp
    csrc/ops/meta/weights.cpp
    csrc/ops/autograd/weights.cpp
    csrc/ops/codes_io.cpp
    csrc/ops/cpu/codes_io.cpp
    csrc/ops/meta/codes_io.cpp
    csrc/ops/autograd/codes_io.cpp
    csrc/ops/straight_through.cpp
    csrc/ops/annotation.cpp
    csrc/ops/autograd/straight_through.cpp
    csrc/ops/fold_batch_norm.cpp
    csrc/ops/cpu/dense.cpp
    csrc/ops/cpu/extremes.cpp
    csrc/ops/cpu/channel_grids.cpp
    csrc/ops/integer_checks.cpp
    csrc/ops/conv_weights.cpp
    csrc/ops/pack_weight.cpp
    csrc/ops/quantized_conv.cpp
    csrc/ops/quantized_conv_check.cpp
    csrc/ops/quantized_affine.cpp
    csrc/ops/quantized_binary.cpp
    csrc/ops/quantized_cat.cpp
    csrc/ops/quantized_lookup.cpp
    csrc/ops/quantized_max_pool.cpp
    csrc/ops/quantized_pool.cpp
    csrc/ops/autograd/quantized.cpp
    csrc/ops/meta/quantized_affine.cpp
    csrc/ops/meta/quantized_binary.cpp
    csrc/ops/meta/quantized_cat.cpp
    csrc/ops/meta/quantized_conv.cpp
    csrc/ops/meta/quantized_lookup.cpp
    csrc/ops/meta/quantized_max_pool.cpp
    csrc/ops/meta/quantized_pool.cpp
    csrc/ops/cpu/nhwc.cpp
    csrc/ops/cpu/quantized_affine.cpp
    csrc/ops/cpu/quantized_binary.cpp
    csrc/ops/cpu/quantized_cat.cpp
    csrc/ops/cpu/kernel_log.cpp
    csrc/ops/cpu/thread_scratch.cpp
    csrc/ops/cpu/conv_packing.cpp
    csrc/ops/cpu/quantized_conv.cpp
    csrc/ops/cpu/quantized_lookup.cpp
    csrc/ops/cpu/quantized_max_pool.cpp
    csrc/ops/cpu/quantized_pool.cpp
    csrc/ops/cpu/quantized_conv_direct.cpp
    csrc/ops/cpu/quantized_conv_phase.cpp
    csrc/ops/cpu/quantized_conv_run.cpp
    csrc/ops/cpu/quantized_conv_amx.cpp
    csrc/ops/fused.cpp
    csrc/ops/fused_checks.cpp
    csrc/ops/fused_shapes.cpp
    csrc/ops/autograd/fused.cpp
    csrc/ops/autocast/fused.cpp
    csrc/ops/meta/fused.cpp
    csrc/ops/cpu/fused_forward.cpp
    csrc/ops/cpu/fused_backward.cpp
    csrc/ops/cpu/fused_codes.cpp
    csrc/ops/cpu/fused_scratch.cpp
    csrc/ops/fused_convolution.cpp
    csrc/ops/fused_integer.cpp
    csrc/ops/cpu/fused_vectors.cpp
    csrc/ops/cpu/capability.cpp
    csrc/ops/cpu/dispatch.cpp)

# CUDA: kernels and the ops that start them; convolutions through cuDNN's graphs; and what takes
# their place in a build without CUDA.
set(HORIZON_CUDA_SOURCES
    csrc/ops/cuda/convolution.cpp
    csrc/ops/cuda/fake_quantize.cu
    csrc/ops/cuda/fused_backward.cu
    csrc/ops/cuda/fused_forward.cu
    csrc/ops/cuda/quantized_maps.cu
    csrc/ops/cuda/quantized_pools.cu
    csrc/ops/cuda/pack_weight.cpp
    csrc/ops/cuda/quantize_activation.cu
    csrc/ops/cuda/weights.cu)
set(HORIZON_CUDNN_SOURCES)
set(HORIZON_NO_CUDA_SOURCES csrc/ops/no_cuda.cpp)

# Fusion: kinds, pattern table, planner. No torch include.
set(HORIZON_FUSE_SOURCES
    csrc/fuse/kinds.cpp
    csrc/fuse/patterns.cpp
    csrc/fuse/text.cpp
    csrc/fuse/resolve.cpp
    csrc/fuse/checks.cpp
    csrc/fuse/planner.cpp
    csrc/fuse/flow.cpp
    csrc/fuse/safety.cpp
    csrc/fuse/discover.cpp)

# The torch::nn front end: modules, and what fuses, prepares and converts them.
set(HORIZON_NN_SOURCES
    csrc/nn/grid.cpp
    csrc/nn/layer.cpp
    csrc/nn/state.cpp
    csrc/nn/pending.cpp
    csrc/nn/slot.cpp
    csrc/nn/fake_quantize.cpp
    csrc/nn/float_functional.cpp
    csrc/nn/stubs.cpp
    csrc/nn/unary_ops.cpp
    csrc/nn/unary.cpp
    csrc/nn/batch_norm.cpp
    csrc/nn/group.cpp
    csrc/nn/group_layer.cpp
    csrc/nn/members.cpp
    csrc/nn/fused.cpp
    csrc/nn/prepared.cpp
    csrc/nn/converted.cpp
    csrc/nn/places.cpp
    csrc/nn/prepare.cpp
    csrc/fuse/module_tree.cpp
    csrc/fuse/torch_nn.cpp)

# Passes over TorchScript graphs.
set(HORIZON_JIT_SOURCES
    csrc/jit/op_support.cpp
    csrc/jit/facts.cpp
    csrc/jit/classify.cpp
    csrc/jit/pairs.cpp
    csrc/jit/analyze.cpp
    csrc/jit/record.cpp
    csrc/jit/prepare.cpp
    csrc/jit/partition.cpp
    csrc/jit/dump.cpp
    csrc/jit/groups.cpp
    csrc/jit/extract.cpp
    csrc/jit/lower_grids.cpp
    csrc/jit/lower_match.cpp
    csrc/jit/lower_single.cpp
    csrc/jit/lower_weights.cpp
    csrc/jit/lower.cpp)

set(HORIZON_BINDING_SOURCES
    csrc/bindings/module.cpp
    csrc/bindings/fuse.cpp
    csrc/bindings/jit.cpp)

set(HORIZON_TEST_SOURCES
    tests/cpp/main.cpp
    tests/cpp/test_code_kernels.cpp
    tests/cpp/test_conv_tiles.cpp
    tests/cpp/test_cuda_fused_kernels.cpp
    tests/cpp/test_cuda_fused_op.cpp
    tests/cpp/test_cuda_quantized_maps.cpp
    tests/cpp/test_cuda_quantized_pools.cpp
    tests/cpp/test_depthwise_layer.cpp
    tests/cpp/test_fused_kernels.cpp
    tests/cpp/test_integer_kernels.cpp
    tests/cpp/test_integer_max_pool.cpp
    tests/cpp/test_integer_ops.cpp
    tests/cpp/test_quant_arithmetic.cpp
    tests/cpp/test_quant_kernels.cpp
    tests/cpp/test_quant_ops.cpp
    tests/cpp/test_jit_partition.cpp
    tests/cpp/test_fuse_patterns.cpp
    tests/cpp/test_fuse_planner.cpp
    tests/cpp/test_fuse_discover.cpp)

# Tests of the torch::nn front end.
set(HORIZON_NN_TEST_SOURCES
    tests/cpp/test_nn_family.cpp
    tests/cpp/test_nn_fuse.cpp
    tests/cpp/test_nn_layers.cpp
    tests/cpp/test_nn_layouts.cpp
    tests/cpp/test_nn_quantize.cpp
    tests/cpp/test_nn_transposed.cpp)
