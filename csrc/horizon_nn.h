#pragma once

// The torch::nn front end: the fused family, fuse_modules, prepare and convert, without Python.
// Apart from horizon_plugin.h, because torch's module headers take half a minute to compile.
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>

#include "fuse/torch_nn.h"
#include "nn/family.h"
#include "nn/grid.h"
#include "nn/prepare.h"
#include "nn/slot.h"
#include "nn/state.h"
#include "nn/stubs.h"
