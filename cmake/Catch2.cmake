# Finds Catch2 2.13 or 3.x: an installed one or, where HORIZON_FETCH_CATCH2 allows the download,
# upstream's. Without either the C++ tests are left out.

find_package(Catch2 QUIET)
if(Catch2_FOUND)
  message(STATUS "Catch2 ${Catch2_VERSION} from ${Catch2_DIR}")
elseif(HORIZON_FETCH_CATCH2)
  message(STATUS "Catch2 is not installed: fetching 3.7.1")
  include(FetchContent)
  FetchContent_Declare(
    Catch2
    GIT_REPOSITORY https://github.com/catchorg/Catch2.git
    GIT_TAG v3.7.1)
  FetchContent_MakeAvailable(Catch2)
else()
  message(STATUS "The C++ tests are left out: Catch2 is not installed (apt-get install catch2, "
                 "or -DHORIZON_FETCH_CATCH2=ON)")
  set(HORIZON_BUILD_TESTS OFF)
endif()
