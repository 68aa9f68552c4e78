# Imports an installed PyTorch (or LibTorch) as the target HorizonPlugin::torch.
#
# find_package(Torch) of a CUDA build insists on a CUDA toolkit even when only C++ sources are
# compiled, so the libraries are imported directly, unless the caller has run it already. Used by
# the build and, installed beside HorizonPluginConfig.cmake, by its users.
#
# Looked for, in this order: the targets of an earlier find_package(Torch); Torch_DIR; every entry
# of CMAKE_PREFIX_PATH; the hints; the Python interpreter that Python3_EXECUTABLE names or PATH has.
# Sets HorizonPlugin_TORCH_ROOT and HorizonPlugin_TORCH_VERSION, both empty when there is none.

function(horizon_torch_from_python result)
  set(${result} "" PARENT_SCOPE)
  set(python "${Python3_EXECUTABLE}")
  if(NOT python)
    find_program(HorizonPlugin_PYTHON NAMES python3 python)
    mark_as_advanced(HorizonPlugin_PYTHON)
    set(python "${HorizonPlugin_PYTHON}")
  endif()
  if(NOT python)
    return()
  endif()
  # Finding the package does not import it: that would take seconds.
  execute_process(
    COMMAND
      "${python}" -c
      "import importlib.util, os; print(os.path.dirname(importlib.util.find_spec('torch').origin))"
    OUTPUT_VARIABLE root
    OUTPUT_STRIP_TRAILING_WHITESPACE
    ERROR_QUIET
    RESULT_VARIABLE status)
  if(status EQUAL 0)
    set(${result} "${root}" PARENT_SCOPE)
  endif()
endfunction()

function(horizon_torch_version root result)
  set(version "")
  foreach(header torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
    if(NOT version AND EXISTS "${root}/include/${header}")
      file(READ "${root}/include/${header}" text)
      if(text MATCHES "TORCH_VERSION_MAJOR ([0-9]+)")
        set(version "${CMAKE_MATCH_1}")
        if(text MATCHES "TORCH_VERSION_MINOR ([0-9]+)")
          string(APPEND version ".${CMAKE_MATCH_1}")
        endif()
        if(text MATCHES "TORCH_VERSION_PATCH ([0-9]+)")
          string(APPEND version ".${CMAKE_MATCH_1}")
        endif()
      endif()
    endif()
  endforeach()
  set(${result} "${version}" PARENT_SCOPE)
endfunction()

function(horizon_import_torch)
  set(candidates "")
  if(TARGET torch AND TORCH_INSTALL_PREFIX)
    list(APPEND candidates "${TORCH_INSTALL_PREFIX}")
  endif()
  if(Torch_DIR)
    get_filename_component(root "${Torch_DIR}/../../.." ABSOLUTE)
    list(APPEND candidates "${root}")
  endif()
  foreach(prefix ${CMAKE_PREFIX_PATH} ${ARGN})
    list(APPEND candidates "${prefix}")
  endforeach()

  set(root "")
  foreach(candidate ${candidates})
    if(NOT root AND EXISTS "${candidate}/include/torch/csrc/api/include/torch/version.h")
      set(root "${candidate}")
    endif()
  endforeach()
  if(NOT root)
    horizon_torch_from_python(root)
  endif()

  set(version "")
  if(root)
    get_filename_component(root "${root}" ABSOLUTE)
    horizon_torch_version("${root}" version)
  endif()
  set(HorizonPlugin_TORCH_ROOT "${root}" PARENT_SCOPE)
  set(HorizonPlugin_TORCH_VERSION "${version}" PARENT_SCOPE)
  if(NOT version OR TARGET HorizonPlugin::torch)
    return()
  endif()

  add_library(HorizonPlugin::torch INTERFACE IMPORTED)
  if(TARGET torch)
    target_link_libraries(HorizonPlugin::torch INTERFACE ${TORCH_LIBRARIES})
    target_include_directories(HorizonPlugin::torch SYSTEM INTERFACE ${TORCH_INCLUDE_DIRS})
    return()
  endif()
  target_include_directories(
    HorizonPlugin::torch SYSTEM INTERFACE "${root}/include"
                                          "${root}/include/torch/csrc/api/include")
  foreach(lib torch torch_cpu c10)
    target_link_libraries(HorizonPlugin::torch INTERFACE "${root}/lib/lib${lib}.so")
  endforeach()
endfunction()
