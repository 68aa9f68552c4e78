# PyTorch and Python for the build itself.
#
# PyTorch's own bundled pybind11 headers come along with its include folder: extensions share its
# type registry only when they are built against the same copy.

if(HORIZON_BUILD_PYTHON)
  find_package(Python3 REQUIRED COMPONENTS Interpreter Development.Module)
endif()

include(ImportTorch)
horizon_import_torch()
if(NOT HorizonPlugin_TORCH_VERSION)
  message(FATAL_ERROR "PyTorch was not found: install torch >= 2.11, < 2.15 for "
                      "'${Python3_EXECUTABLE}', or pass -DPython3_EXECUTABLE=... or -DTorch_DIR=...")
endif()
if(HorizonPlugin_TORCH_VERSION VERSION_LESS 2.11
   OR NOT HorizonPlugin_TORCH_VERSION VERSION_LESS 2.15)
  message(FATAL_ERROR "horizon-plugin needs torch >= 2.11, < 2.15, "
                      "found ${HorizonPlugin_TORCH_VERSION} in ${HorizonPlugin_TORCH_ROOT}")
endif()
message(STATUS "PyTorch ${HorizonPlugin_TORCH_VERSION} in ${HorizonPlugin_TORCH_ROOT}")

string(REGEX MATCH "^[0-9]+\\.[0-9]+" HORIZON_TORCH_MINOR "${HorizonPlugin_TORCH_VERSION}")
if(HORIZON_BUILD_PYTHON)
  set(HORIZON_PYTHON_MINOR "${Python3_VERSION_MAJOR}.${Python3_VERSION_MINOR}")
endif()
