#!/usr/bin/env bash
# Configures and builds in place, incrementally; one build at a time.
# usage: build.sh VENV BUILD_DIR
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1 build=$2
export PATH="$PWD/$venv/bin:$PATH"
mkdir -p "$build"
exec 9>"$build/.lock"
flock 9
if [ ! -f "$build/build.ninja" ]; then
  echo "== configuring $build"
  cmake -S . -B "$build" -G Ninja -DPython3_EXECUTABLE="$PWD/$venv/bin/python" \
    -DHORIZON_WERROR=ON ${CMAKE_ARGS:-} >"$build/configure.log" || { cat "$build/configure.log"; exit 1; }
fi
echo "== building $build"
cmake --build "$build" -- ${NINJA_ARGS:-}
mkdir -p horizon_plugin/lib
cp -u "$build"/python/horizon_plugin/_C*.so horizon_plugin/
cp -u "$build"/python/horizon_plugin/lib/* horizon_plugin/lib/
python - <<'PY'
import json, pathlib, site, torch
version = ".".join(torch.__version__.split("+")[0].split(".")[:2])
pathlib.Path("horizon_plugin/lib/build.json").write_text(json.dumps({"torch": version}))
here = pathlib.Path.cwd()
pathlib.Path(site.getsitepackages()[0], "horizon_plugin_dev.pth").write_text(
    f"{here}\n{here / 'aliases'}\n")
PY
