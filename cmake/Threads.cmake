# horizon_threads: at::parallel_for runs on PyTorch's own OpenMP threads.
#
# ATen's header is serial where the compiler has no OpenMP. The runtime must be the copy that
# PyTorch has loaded: a second one brings threads of its own, which wait in busy loops for the same
# cores. Wheels bundle theirs, in some releases under a changed name.

find_package(OpenMP QUIET COMPONENTS CXX)
add_library(horizon_threads INTERFACE)
if(NOT OpenMP_CXX_FOUND)
  message(WARNING "Operators run on one thread: ${CMAKE_CXX_COMPILER} has no OpenMP")
else()
  separate_arguments(flags NATIVE_COMMAND "${OpenMP_CXX_FLAGS}")
  foreach(flag ${flags})
    target_compile_options(horizon_threads INTERFACE $<$<COMPILE_LANGUAGE:CXX>:${flag}>)
  endforeach()
  file(GLOB bundled "${HorizonPlugin_TORCH_ROOT}/lib/libgomp*.so*")
  if(bundled AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    list(GET bundled 0 bundled)
    target_link_libraries(horizon_threads INTERFACE "${bundled}")
    message(STATUS "OpenMP: PyTorch's ${bundled}")
  else()
    target_link_libraries(horizon_threads INTERFACE ${OpenMP_CXX_LIBRARIES})
    message(STATUS "OpenMP: ${OpenMP_CXX_LIBRARIES}")
  endif()
endif()
