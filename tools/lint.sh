#!/usr/bin/env bash
# Checks format, style and types of everything; runs all checks, then fails if one did.
# usage: lint.sh VENV
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$PWD/$1/bin
failed=()
check() {
  echo "== $*"
  local tool=$1
  shift
  "$bin/$tool" "$@" || failed+=("$tool")
}

mapfile -t sources < <(find csrc tests examples benchmarks \( -name '*.h' -o -name '*.cpp' \) | sort)
echo "== clang-format on ${#sources[@]} files"
"$bin/clang-format" --dry-run -Werror "${sources[@]}" || failed+=(clang-format)
check ruff check .
check ruff format --check .
check mypy horizon_plugin
if [ ${#failed[@]} -gt 0 ]; then
  echo "== lint failed: ${failed[*]} (make format repairs the formatting)" >&2
  exit 1
fi
echo "== lint is clean"
