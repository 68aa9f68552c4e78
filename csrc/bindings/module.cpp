#include <pybind11/pybind11.h>

#include "bindings/bindings.h"
#include "ops/cpu/dispatch.h"

PYBIND11_MODULE(_C, m) {
  m.doc() = "Bindings of libhorizon_plugin; use the Python packages instead.";
  m.def(
      "cpu_capability", [] { return horizon::cpu::capability_name(); },
      "The instruction set that CPU kernels run on.");
  horizon::bindings::bind_fuse(m);
  horizon::bindings::bind_jit(m);
}
