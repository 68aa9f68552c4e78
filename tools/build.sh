#!/usr/bin/env bash
# Configures, builds and installs in place (horizon_plugin/), incrementally; one build at a time.
# usage: build.sh VENV BUILD_DIR
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1 build=$2
export PATH="$PWD/$venv/bin:$PATH"
mkdir -p "$build"
exec 9>"$build/.lock"
flock 9

# Configured anew when the compiler, PyTorch, Catch2 or the options change; CMake itself notices
# changes of its own files.
torch=$(python -c 'import importlib.metadata as m; print(m.version("torch"))')
catch2=no
for file in /usr/include/catch2 /usr/local/include/catch2; do [ ! -e "$file" ] || catch2=yes; done
facts="$PWD $torch catch2=$catch2 ${CXX:-c++} ${CMAKE_ARGS:-}"
if [ ! -f "$build/build.ninja" ] || [ "$(cat "$build/.facts" 2>/dev/null)" != "$facts" ]; then
  echo "== configuring $build (torch $torch)"
  cmake -S . -B "$build" -G Ninja -DPython3_EXECUTABLE="$PWD/$venv/bin/python" \
    -DHORIZON_WERROR=ON -DHORIZON_IN_PLACE=ON ${CMAKE_ARGS:-} >"$build/configure.log" 2>&1 ||
    { cat "$build/configure.log"; exit 1; }
  grep "tests are left out" "$build/configure.log" || true
  echo "$facts" >"$build/.facts"
fi

echo "== building $build"
cmake --build "$build" -- ${NINJA_ARGS:-}
cmake --install "$build" --prefix horizon_plugin >"$build/install.log"
python - <<'PY'
import pathlib, sysconfig
root = pathlib.Path.cwd()
pth = pathlib.Path(sysconfig.get_path("purelib"), "horizon_plugin_dev.pth")
text = f"{root}\n{root / 'aliases'}\n"
if not pth.exists() or pth.read_text() != text:
    pth.write_text(text)
PY
