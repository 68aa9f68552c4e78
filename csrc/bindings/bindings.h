#pragma once

#include <pybind11/pybind11.h>

namespace horizon::bindings {

/// The pattern table and the planner of fuse_modules.
void bind_fuse(pybind11::module_& m);

/// The passes over TorchScript graphs.
void bind_jit(pybind11::module_& m);

}  // namespace horizon::bindings
