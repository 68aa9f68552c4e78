# HORIZON_CUDA: AUTO (where PyTorch is a CUDA build and nvcc is found), ON or OFF.
#
# find_package(Torch) of a CUDA build wants a whole toolkit. What the kernels need is less: nvcc,
# PyTorch's libraries, and the headers and libraries of the NVIDIA wheels that it was installed with,
# or of the toolkit. Sets HORIZON_CUDA_ENABLED, HORIZON_CUDNN_ENABLED and the target horizon_cuda.

set(HORIZON_CUDA AUTO CACHE STRING "Build the CUDA kernels: AUTO, ON or OFF")
set_property(CACHE HORIZON_CUDA PROPERTY STRINGS AUTO ON OFF)
set(HORIZON_CUDA_ENABLED OFF)
set(HORIZON_CUDNN_ENABLED OFF)
set(HORIZON_CUDA_VERSION "")
add_library(horizon_cuda INTERFACE)

string(TOUPPER "${HORIZON_CUDA}" wanted)
if(wanted STREQUAL "OFF" OR wanted STREQUAL "0" OR wanted STREQUAL "FALSE")
  message(STATUS "CUDA kernels: no (HORIZON_CUDA=${HORIZON_CUDA})")
  return()
endif()

set(missing "")
if(NOT EXISTS "${HorizonPlugin_TORCH_ROOT}/lib/libtorch_cuda.so")
  set(missing "PyTorch in ${HorizonPlugin_TORCH_ROOT} is not a CUDA build: install one")
else()
  find_program(
    HORIZON_NVCC nvcc
    HINTS "$ENV{CUDACXX}" "$ENV{CUDA_HOME}/bin" "${CUDAToolkit_ROOT}/bin" /usr/local/cuda/bin)
  if(NOT HORIZON_NVCC)
    set(missing "nvcc was not found: install the CUDA toolkit, or set CUDA_HOME")
  endif()
endif()
if(missing AND wanted STREQUAL "AUTO")
  message(STATUS "CUDA kernels: no (${missing})")
  return()
elseif(missing)
  message(FATAL_ERROR "HORIZON_CUDA=${HORIZON_CUDA}, but ${missing}")
endif()

# "8.0;9.0+PTX" of PyTorch's variable is 80-real;90 of CMake's.
set(architectures "")
string(REPLACE " " ";" listed "$ENV{TORCH_CUDA_ARCH_LIST}")
foreach(item ${listed})
  if(item MATCHES "^([0-9]+)\\.([0-9]+a?)(\\+PTX)?$")
    set(number "${CMAKE_MATCH_1}${CMAKE_MATCH_2}")
    if(CMAKE_MATCH_3)
      list(APPEND architectures "${number}")
    else()
      list(APPEND architectures "${number}-real")
    endif()
  else()
    message(FATAL_ERROR "TORCH_CUDA_ARCH_LIST must list numbers such as 9.0 or 9.0+PTX, "
                        "got '${item}'")
  endif()
endforeach()
if(NOT architectures)
  set(architectures 90-real)
endif()
set(CMAKE_CUDA_ARCHITECTURES "${architectures}" CACHE STRING "" FORCE)
set(CMAKE_CUDA_COMPILER "${HORIZON_NVCC}" CACHE FILEPATH "" FORCE)
set(CMAKE_CUDA_RUNTIME_LIBRARY None)
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
if(HORIZON_CCACHE)
  set(CMAKE_CUDA_COMPILER_LAUNCHER "${HORIZON_CCACHE}")
endif()
enable_language(CUDA)

get_filename_component(toolkit "${HORIZON_NVCC}" REALPATH)
get_filename_component(toolkit "${toolkit}/../.." ABSOLUTE)
get_filename_component(packages "${HorizonPlugin_TORCH_ROOT}/.." ABSOLUTE)
file(GLOB wheels "${packages}/nvidia/cu[0-9]*" "${packages}/nvidia/cuda_runtime")
find_file(HORIZON_CUDART NAMES libcudart.so.13 libcudart.so.12 libcudart.so
          PATHS ${wheels} "${toolkit}" PATH_SUFFIXES lib lib64 NO_DEFAULT_PATH)
if(NOT HORIZON_CUDART)
  message(FATAL_ERROR "libcudart was not found in ${toolkit} or beside PyTorch")
endif()
foreach(wheel ${wheels})
  list(APPEND horizon_cuda_includes "${wheel}/include")
endforeach()
file(GLOB more "${packages}/nvidia/cublas/include" "${packages}/nvidia/cusparse/include"
     "${packages}/nvidia/cusolver/include")
target_include_directories(horizon_cuda SYSTEM INTERFACE ${horizon_cuda_includes} ${more}
                                                         ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
target_link_libraries(
  horizon_cuda INTERFACE "${HorizonPlugin_TORCH_ROOT}/lib/libtorch_cuda.so"
                         "${HorizonPlugin_TORCH_ROOT}/lib/libc10_cuda.so" "${HORIZON_CUDART}")
# No contraction: a fused multiply-add happens only where std::fma is written, as on the CPU.
target_compile_options(
  horizon_cuda
  INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:-fmad=false --expt-relaxed-constexpr
            -Xcompiler=-Wall,-Wextra,-Wno-unused-parameter,-ffp-contract=off
            $<$<BOOL:${HORIZON_WERROR}>:-Werror=all-warnings -Xcompiler=-Werror>>)
target_compile_definitions(horizon_cuda INTERFACE HORIZON_HAVE_CUDA)
set(HORIZON_CUDA_ENABLED ON)
set(HORIZON_CUDA_VERSION "${CMAKE_CUDA_COMPILER_VERSION}")
message(STATUS "CUDA kernels: ${CMAKE_CUDA_COMPILER_VERSION} for ${CMAKE_CUDA_ARCHITECTURES}")

# cuDNN's graph interface: headers only, over the library that PyTorch loads.
find_path(
  HORIZON_CUDNN_FRONTEND cudnn_frontend.h
  PATHS "$ENV{CUDNN_FRONTEND_INCLUDE}" "${packages}/include"
        "${HorizonPlugin_TORCH_ROOT}/../../../../include" NO_DEFAULT_PATH)
find_path(HORIZON_CUDNN_INCLUDE cudnn.h
          PATHS "${packages}/nvidia/cudnn/include" "${toolkit}/include" /usr/include
          NO_DEFAULT_PATH)
find_file(HORIZON_CUDNN_LIBRARY libcudnn.so.9
          PATHS "${packages}/nvidia/cudnn/lib" "${toolkit}/lib64" /usr/lib/x86_64-linux-gnu
          NO_DEFAULT_PATH)
if(HORIZON_CUDNN_FRONTEND AND HORIZON_CUDNN_INCLUDE AND HORIZON_CUDNN_LIBRARY)
  set(HORIZON_CUDNN_ENABLED ON)
  target_include_directories(horizon_cuda SYSTEM INTERFACE "${HORIZON_CUDNN_FRONTEND}"
                                                           "${HORIZON_CUDNN_INCLUDE}")
  target_link_libraries(horizon_cuda INTERFACE "${HORIZON_CUDNN_LIBRARY}")
  target_compile_definitions(horizon_cuda INTERFACE HORIZON_HAVE_CUDNN)
  message(STATUS "cuDNN: ${HORIZON_CUDNN_LIBRARY}")
else()
  message(STATUS "cuDNN: no (cudnn_frontend.h: ${HORIZON_CUDNN_FRONTEND}, set "
                 "CUDNN_FRONTEND_INCLUDE; cudnn.h: ${HORIZON_CUDNN_INCLUDE}; "
                 "libcudnn.so.9: ${HORIZON_CUDNN_LIBRARY}): our own convolutions run instead")
endif()
