#!/usr/bin/env bash
# Creates the virtual environment and installs what building and testing need.
# usage: setup_env.sh PYTHON VENV TORCH
set -euo pipefail
python=$1 venv=$2 torch=$3

if [ ! -x "$venv/bin/python" ]; then
  echo "== creating $venv with $($python --version)"
  "$python" -m venv "$venv"
fi
if ! "$venv/bin/python" -c 'import torch' 2>/dev/null; then
  echo "== installing $torch"
  "$venv/bin/pip" install -q "$torch"
fi
echo "== installing build and test tools"
"$venv/bin/pip" install -q "cmake>=3.27" ninja "setuptools>=77" wheel numpy scikit-learn \
  pytest hypothesis ruff mypy clang-format
if ! [ -e /usr/include/catch2 ]; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "== installing Catch2 from the distribution"
    (apt-get update -qq && apt-get install -y -qq catch2) >/dev/null 2>&1 ||
      echo "== Catch2 could not be installed: the C++ tests are skipped"
  else
    echo "== Catch2 is not installed (Debian: apt-get install catch2): the C++ tests are skipped"
  fi
fi
