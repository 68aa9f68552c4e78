#pragma once

// Everything a C++ program uses. Linking the library is enough to run TorchScript files that hold
// its operators (torch.ops.horizon); the headers below declare them for direct calls.
#include "jit/groups.h"
#include "jit/partition.h"
#include "ops/annotation.h"
#include "ops/codes_io.h"
#include "ops/fake_quantize.h"
#include "ops/fold_batch_norm.h"
#include "ops/fused.h"
#include "ops/observe.h"
#include "ops/pack_weight.h"
#include "ops/quantize_activation.h"
#include "ops/quantized_affine.h"
#include "ops/quantized_binary.h"
#include "ops/quantized_cat.h"
#include "ops/quantized_conv.h"
#include "ops/quantized_lookup.h"
#include "ops/quantized_max_pool.h"
#include "ops/quantized_pool.h"
#include "ops/straight_through.h"
#include "ops/weights.h"
#include "version.h"
