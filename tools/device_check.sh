#!/usr/bin/env bash
# Builds, tests and measures on a machine with a GPU, from a bare checkout and without a network, in
# less than ten minutes; uses the Python that runs (PYTHON), with the PyTorch that it has.
# usage: device_check.sh [BUILD_DIR]
#   PYTHON                 the interpreter (python3)
#   WHEELS                 a folder of wheels: what is absent is installed from there
#   CUDNN_FRONTEND_INCLUDE the folder of cudnn_frontend.h
#   TORCH_CUDA_ARCH_LIST   9.0
#   DEVICE_CHECK_SKIP      any of: build cpp parity bench
set -uo pipefail
cd "$(dirname "$0")/.."
build=${1:-build-device}
python=${PYTHON:-python3}
export TORCH_CUDA_ARCH_LIST=${TORCH_CUDA_ARCH_LIST:-9.0}
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
failed=()

say() { echo "== $* (after $SECONDS s)"; }
left_out() { echo "== left out: $*"; }
skipped() { [[ " ${DEVICE_CHECK_SKIP:-} " == *" $1 "* ]]; }
has() { "$python" -c "import $1" 2>/dev/null; }

# NAME [MODULE]: whether Python has it, if need be after installing it from WHEELS.
need() {
  local name=$1 module=${2:-$1}
  has "$module" && return
  if [ -n "${WHEELS:-}" ] && "$python" -m pip install -q --no-index --find-links "$WHEELS" "$name"; then
    echo "== installed $name from $WHEELS"
    has "$module" && return
  fi
  echo "== absent: $name (a wheel in the folder WHEELS would be installed)"
  return 1
}

# SECONDS NAME COMMAND...: notes a failure and goes on.
stage() {
  local limit=$1 name=$2
  shift 2
  say "$name"
  timeout "$limit" "$@" && return
  local status=$?
  [ $status -ne 124 ] || echo "== $name took more than $limit s"
  failed+=("$name")
  return $status
}

"$python" - <<'PY' || exit 1
import sys
import torch

gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
print(f"== Python {sys.version.split()[0]}, torch {torch.__version__}, {gpu}")
PY

configure() {
  local generator=()
  if command -v ninja >/dev/null || need ninja; then generator=(-G Ninja); fi
  command -v cmake >/dev/null || need cmake || { left_out "everything: cmake is absent"; return 1; }
  local scripts
  scripts=$("$python" -c 'import sysconfig; print(sysconfig.get_path("scripts"))')
  export PATH=$PATH:$scripts
  cmake -S . -B "$build" "${generator[@]}" -DPython3_EXECUTABLE="$(command -v "$python")" \
    -DHORIZON_IN_PLACE=ON ${CMAKE_ARGS:-} >"$build.log" 2>&1 || { tail -n 40 "$build.log"; return 1; }
  grep -E "CUDA kernels|cuDNN|tests are left out" "$build.log" || true
}

compile() {
  cmake --build "$build" --parallel "$(nproc)" >>"$build.log" 2>&1 &&
    cmake --install "$build" --prefix horizon_plugin >>"$build.log" 2>&1 ||
    { grep -E -A5 "error|FAILED" "$build.log" | head -n 60; return 1; }
}
export -f configure compile need has left_out
export python build

if skipped build; then
  left_out "the build"
else
  say "configuring $build"
  configure || exit 1
  stage 330 "building" bash -c compile || exit 1
fi

if skipped cpp || [ ! -x "$build/horizon_tests" ]; then
  left_out "the C++ tests (Catch2 is absent, or they were not wanted)"
else
  stage 40 "C++ tests" "$build/horizon_tests" "[cuda]"
fi

if skipped parity || ! need pytest || ! need numpy; then
  left_out "the parity tests"
else
  need hypothesis || left_out "the Python tests that use it"
  stage 120 "parity tests" "$python" -m pytest -q -p no:cacheprovider \
    tests/python/test_cuda_parity_ops.py tests/python/test_cuda_parity_groups.py \
    tests/python/test_cuda_parity_models.py tests/python/test_host_reads.py ${PYTEST_ARGS:-}
fi

if skipped bench; then
  left_out "the benchmark"
else
  stage 100 "benchmark" "$python" benchmarks/gpu.py --json out/bench/gpu.json ${BENCH_ARGS:-}
fi

if [ ${#failed[@]} -ne 0 ]; then
  say "failed: ${failed[*]}"
  exit 1
fi
say "all passed"
