#!/usr/bin/env bash
# Creates the virtual environment and installs what building and testing need; does nothing where
# that has been done.
# usage: setup_env.sh PYTHON VENV TORCH
set -euo pipefail
cd "$(dirname "$0")/.."
wanted=$1 venv=$2 torch=$3

die() { echo "$*" >&2; exit 1; }

stamp="$torch $(cksum <tools/requirements.txt)"
if [ "$(cat "$venv/.ready" 2>/dev/null)" = "$stamp" ] && "$venv/bin/python" -c '' 2>/dev/null; then
  exit 0
fi

# A version manager's python3.11 may be there and not run, so each candidate is tried.
python=
for candidate in "$wanted" python3.11 python3; do
  if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    python=$candidate
    break
  fi
done
[ -n "$python" ] || die "Python 3.11 or later is needed: neither $wanted nor python3 is one" \
  "(name one with make PYTHON=...)"
echo 'int main() { return [](auto x) requires true { return x; }(0); }' |
  "${CXX:-c++}" -std=c++20 -fsyntax-only -x c++ - 2>/dev/null ||
  die "A C++20 compiler is needed: ${CXX:-c++} is none (g++ 11 or later, or clang++ 14 or later)"
include=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
[ -f "$include/Python.h" ] ||
  die "Python's headers are missing from $include (Debian: apt-get install python3-dev)"

if ! "$venv/bin/python" -c '' 2>/dev/null; then
  echo "== creating $venv with $("$python" --version)"
  "$python" -m venv --clear "$venv" ||
    die "'$python -m venv' failed (Debian: apt-get install python3-venv)"
fi
have=$("$venv/bin/python" -c 'import importlib.metadata as m; print(m.version("torch"))' \
  2>/dev/null || true)
if [ "${have%%+*}" != "${torch#torch==}" ]; then
  echo "== installing $torch (about 200 MB to download)"
  "$venv/bin/python" -m pip install -q "$torch"
fi
echo "== installing the build and test tools"
"$venv/bin/python" -m pip install -q -r tools/requirements.txt

if ! [ -e /usr/include/catch2 ] && ! [ -e /usr/local/include/catch2 ]; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "== installing Catch2 from the distribution"
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq catch2; } \
      >/dev/null 2>&1 || echo "== Catch2 could not be installed: the C++ tests will be left out"
  else
    echo "== Catch2 is not installed (Debian: apt-get install catch2): the C++ tests will be left out"
  fi
fi
echo "$stamp" >"$venv/.ready"
