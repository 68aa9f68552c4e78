# What an installed copy holds, below one prefix (in a wheel: the horizon_plugin package):
#   lib/ the library and the facts it was built with, include/horizon/ the headers,
#   share/cmake/HorizonPlugin/ the CMake package, and _C beside the Python modules.

include(CMakePackageConfigHelpers)

configure_file(cmake/build.json.in build.json @ONLY)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/build.json" DESTINATION lib)

install(TARGETS horizon_plugin EXPORT HorizonPluginTargets LIBRARY DESTINATION lib)
if(HORIZON_BUILD_PYTHON)
  install(TARGETS _C LIBRARY DESTINATION .)
endif()
# Bindings, kernels and argument checks are the library's own.
install(
  DIRECTORY csrc/
  DESTINATION include/horizon
  FILES_MATCHING
  PATTERN "*.h"
  PATTERN "bindings" EXCLUDE
  PATTERN "cpu" EXCLUDE
  PATTERN "cuda" EXCLUDE
  PATTERN "autocast" EXCLUDE
  PATTERN "autograd" EXCLUDE
  PATTERN "meta" EXCLUDE
  PATTERN "*check*.h" EXCLUDE
  PATTERN "*_shapes.h" EXCLUDE
  PATTERN "dense_weight.h" EXCLUDE
  PATTERN "fused_convolution.h" EXCLUDE
  PATTERN "fused_integer.h" EXCLUDE
  PATTERN "fused_rows.h" EXCLUDE
  PATTERN "pool_windows.h" EXCLUDE
  PATTERN "pch.h" EXCLUDE)

set(HORIZON_CMAKE_DIR share/cmake/HorizonPlugin)
# In place, the package lies in the source tree and PyTorch does not lie beside it.
set(HORIZON_TORCH_HINT "")
if(HORIZON_IN_PLACE)
  set(HORIZON_TORCH_HINT "${HorizonPlugin_TORCH_ROOT}")
endif()
configure_package_config_file(
  cmake/HorizonPluginConfig.cmake.in HorizonPluginConfig.cmake
  INSTALL_DESTINATION ${HORIZON_CMAKE_DIR})
write_basic_package_version_file(HorizonPluginConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(
  FILES "${CMAKE_CURRENT_BINARY_DIR}/HorizonPluginConfig.cmake"
        "${CMAKE_CURRENT_BINARY_DIR}/HorizonPluginConfigVersion.cmake" cmake/ImportTorch.cmake
  DESTINATION ${HORIZON_CMAKE_DIR})
install(
  EXPORT HorizonPluginTargets
  NAMESPACE HorizonPlugin::
  DESTINATION ${HORIZON_CMAKE_DIR})
