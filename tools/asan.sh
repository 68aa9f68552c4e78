#!/usr/bin/env bash
# Builds the C++ tests with the address and undefined-behaviour sanitizers and runs them.
# usage: asan.sh VENV BUILD_DIR [TEST_ARGUMENTS...]
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1 build=$2
shift 2
export PATH="$PWD/$venv/bin:$PATH"
if [ ! -f "$build/build.ninja" ]; then
  echo "== configuring $build"
  mkdir -p "$build"
  cmake -S . -B "$build" -G Ninja -DPython3_EXECUTABLE="$PWD/$venv/bin/python" \
    -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS=-O1 -DHORIZON_SANITIZE=ON \
    -DHORIZON_BUILD_PYTHON=OFF ${CMAKE_ARGS:-} >"$build/configure.log" 2>&1 ||
    { cat "$build/configure.log"; exit 1; }
fi
echo "== building $build"
cmake --build "$build" -- ${NINJA_ARGS:-}
[ -x "$build/horizon_tests" ] ||
  { echo "Catch2 is not installed (Debian: apt-get install catch2)" >&2; exit 1; }

export ASAN_OPTIONS=${ASAN_OPTIONS:-strict_string_checks=1:detect_stack_use_after_return=1}
export UBSAN_OPTIONS=print_stacktrace=1
for capability in "" avx2 default; do
  echo "== C++ tests under the sanitizers (ATEN_CPU_CAPABILITY='$capability')"
  ATEN_CPU_CAPABILITY=$capability "$build/horizon_tests" "$@"
done
