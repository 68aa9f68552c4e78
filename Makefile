# make demo | test | bench | build | lint | format | asan | clean
PYTHON ?= python3.11
VENV := .venv
PY := $(VENV)/bin/python
BUILD ?= build
TORCH ?= torch==2.13.0

.PHONY: build setup test test-cpp test-python demo bench lint format asan clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml tools/setup_env.sh
	@bash tools/setup_env.sh "$(PYTHON)" "$(VENV)" "$(TORCH)"
	@touch $@

build: setup
	@bash tools/build.sh "$(VENV)" "$(BUILD)"

test-cpp: build
	$(BUILD)/horizon_tests --order rand --rng-seed time

test-python: build
	$(PY) -m pytest tests/python

test: test-cpp test-python

clean:
	rm -rf build build-* horizon_plugin/lib horizon_plugin/_C*.so
