# Finds Catch2 2.13 or 3.x: an installed one first, then FetchContent where there is internet.

find_package(Catch2 QUIET)
if(Catch2_FOUND)
  message(STATUS "Catch2 ${Catch2_VERSION} from ${Catch2_DIR}")
else()
  message(STATUS "Catch2 is not installed (Debian: apt-get install catch2); fetching 3.7.1")
  include(FetchContent)
  FetchContent_Declare(
    Catch2
    GIT_REPOSITORY https://github.com/catchorg/Catch2.git
    GIT_TAG v3.7.1)
  FetchContent_MakeAvailable(Catch2)
endif()
