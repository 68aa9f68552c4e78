#pragma once

// What a C++ program needs of horizon-plugin. Linking the library is enough to run TorchScript
// files that use its operators (torch.ops.horizon); the headers below declare them for C++ callers.
#include "version.h"
