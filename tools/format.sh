#!/usr/bin/env bash
# Formats the C++ and Python sources in place.
# usage: format.sh VENV
set -euo pipefail
cd "$(dirname "$0")/.."
find csrc tests examples benchmarks \( -name '*.h' -o -name '*.cpp' \) -print0 |
  xargs -0 "$1/bin/clang-format" -i
"$1/bin/ruff" check -q --fix . || true
"$1/bin/ruff" format .
