# Imports the installed PyTorch as the target Torch::torch, asking Python where it lives.
#
# find_package(Torch) of a CUDA build insists on a CUDA toolkit even when only C++ sources are
# compiled, so the libraries are imported directly. PyTorch's own bundled pybind11 headers come
# along: extensions share its type registry only when they are built against the same copy.

find_package(Python3 REQUIRED COMPONENTS Interpreter Development.Module)

execute_process(
  COMMAND "${Python3_EXECUTABLE}" "${CMAKE_CURRENT_LIST_DIR}/query_torch.py"
  OUTPUT_VARIABLE HORIZON_TORCH_FACTS
  OUTPUT_STRIP_TRAILING_WHITESPACE
  RESULT_VARIABLE HORIZON_TORCH_STATUS)
if(NOT HORIZON_TORCH_STATUS EQUAL 0)
  message(FATAL_ERROR "PyTorch is not importable by ${Python3_EXECUTABLE}: "
                      "install torch >= 2.11, < 2.15 there, or pass -DPython3_EXECUTABLE=...")
endif()
list(GET HORIZON_TORCH_FACTS 0 HORIZON_TORCH_DIR)
list(GET HORIZON_TORCH_FACTS 1 HORIZON_TORCH_VERSION)
list(GET HORIZON_TORCH_FACTS 2 HORIZON_TORCH_CUDA)

if(HORIZON_TORCH_VERSION VERSION_LESS 2.11 OR NOT HORIZON_TORCH_VERSION VERSION_LESS 2.15)
  message(FATAL_ERROR "horizon-plugin needs torch >= 2.11, < 2.15, found ${HORIZON_TORCH_VERSION}")
endif()
message(STATUS "PyTorch ${HORIZON_TORCH_VERSION} (CUDA: ${HORIZON_TORCH_CUDA})")

add_library(Torch::torch INTERFACE IMPORTED)
target_include_directories(
  Torch::torch SYSTEM INTERFACE "${HORIZON_TORCH_DIR}/include"
                                "${HORIZON_TORCH_DIR}/include/torch/csrc/api/include")
target_compile_definitions(Torch::torch INTERFACE _GLIBCXX_USE_CXX11_ABI=1)
foreach(lib torch torch_cpu c10)
  target_link_libraries(Torch::torch INTERFACE "${HORIZON_TORCH_DIR}/lib/lib${lib}.so")
endforeach()
