# The project's commands; `make help` lists them. Every one sets up what it needs first.
PYTHON ?= python3.11
VENV ?= .venv
TORCH ?= torch==2.13.0
BUILD ?= build
DEMO_ARGS ?=
BENCH_ARGS ?=
PYTEST_ARGS ?=

PY := $(VENV)/bin/python

.NOTPARALLEL:
.PHONY: help setup build test test-cpp test-python run-cpp run-python demo bench device-check compute-sanitizer lint format asan clean

help:
	@echo "make demo      train, quantize and run the example, from Python and from C++ (DEMO_ARGS=...)"
	@echo "make bench     speed next to float and to others, as tables and JSON (BENCH_ARGS=...)"
	@echo "make test      the C++ tests, then the Python tests (PYTEST_ARGS=...)"
	@echo "make build     the library, in place: $(PY) imports it from here"
	@echo "make device-check  build, test and measure on a machine with a GPU (tools/device_check.sh)"
	@echo "make compute-sanitizer  the device tests under CUDA's memory checker; needs a GPU"
	@echo "make lint      formatting, style and types; make format repairs the formatting"
	@echo "make asan      the C++ tests under the address and undefined-behaviour sanitizers"
	@echo "make clean     remove what was built; the environment $(VENV) stays"

setup:
	@bash tools/setup_env.sh "$(PYTHON)" "$(VENV)" "$(TORCH)"

build: setup
	@bash tools/build.sh "$(VENV)" "$(BUILD)"

# Both halves run even when the first fails.
test: build
	@$(MAKE) --no-print-directory --keep-going run-cpp run-python

test-cpp: build
	@$(MAKE) --no-print-directory run-cpp

test-python: build
	@$(MAKE) --no-print-directory run-python

run-cpp:
	@if [ -x $(BUILD)/horizon_tests ]; then \
	  echo "== C++ tests"; $(BUILD)/horizon_tests --order rand --rng-seed time; \
	else echo "== the C++ tests are left out: Catch2 is not installed"; fi

run-python:
	@echo "== Python tests"
	@$(PY) -m pytest tests/python $(PYTEST_ARGS)

demo: build
	@$(PY) examples/python/digits_qat.py $(DEMO_ARGS)

bench: build
	@for name in overhead kernels inference training training_kernels fuse; do \
	  $(PY) benchmarks/$$name.py --json out/bench/$$name.json $(BENCH_ARGS) || exit 1; done

# Without the environment: the Python that runs, and what it has.
device-check:
	@bash tools/device_check.sh

# Of the build that $(PY) imports.
compute-sanitizer:
	@$(PY) -c "import sys, torch; sys.exit(not torch.cuda.is_available())" || \
	  { echo "make compute-sanitizer needs a GPU, and a CUDA build of torch in $(VENV)" >&2; exit 1; }
	@compute-sanitizer --error-exitcode 1 $(PY) -m pytest tests/python/test_cuda_parity_ops.py \
	  tests/python/test_cuda_parity_groups.py $(PYTEST_ARGS)

lint: setup
	@bash tools/lint.sh "$(VENV)"

format: setup
	@bash tools/format.sh "$(VENV)"

asan: setup
	@bash tools/asan.sh "$(VENV)" build-asan

clean:
	rm -rf build build-* dist horizon_plugin/lib horizon_plugin/include horizon_plugin/share
	rm -f horizon_plugin/_C*.so
