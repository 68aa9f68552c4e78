#pragma once

// The torch::nn front end: the fused family, fuse_modules, prepare and convert, without Python.
// Apart from horizon_plugin.h, because torch's module headers take half a minute to compile.
#include "fuse/torch_nn.h"
#include "nn/family.h"
#include "nn/grid.h"
#include "nn/prepare.h"
#include "nn/slot.h"
#include "nn/state.h"
#include "nn/stubs.h"
