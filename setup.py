"""Builds the wheel: CMake compiles and installs the C++ side, setuptools packs it.

Environment: ``CMAKE_ARGS`` (passed on), ``MAX_JOBS`` (parallel compilations), ``HORIZON_CUDA``
(``AUTO``, ``ON`` or ``OFF``: build the CUDA kernels), ``HORIZON_NO_ALIASES=1`` (leave out the
packages ``horizon`` and ``horizon_plugin_pytorch``), ``HORIZON_BUILD_DIR`` (kept between builds;
default ``build-wheel``).
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent.resolve()
NAME = "horizon-plugin"
ALIASES = ("horizon", "horizon_plugin_pytorch")
CMAKE_MINIMUM = (3, 24)
TRUE = {"1", "on", "true", "yes"}


def _flag(name: str) -> bool:
    return os.environ.get(name, "").lower() in TRUE


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _taken_by(alias: str) -> str | None:
    """The installed distribution, other than this one, that has the alias's name or provides it."""
    # An isolated build hides the environment that is installed into; its folders do not move.
    paths = [*sys.path, sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    for distribution in importlib.metadata.distributions(path=list(dict.fromkeys(paths))):
        name = distribution.metadata["Name"] or ""
        if _normalized(name) == NAME:
            continue
        provided = (distribution.read_text("top_level.txt") or "").split()
        files = distribution.files or []
        if (
            _normalized(name) == _normalized(alias)
            or alias in provided
            or any(file.parts[:1] == (alias,) for file in files)
        ):
            return name
    return None


def _aliases() -> list[str]:
    if _flag("HORIZON_NO_ALIASES"):
        return []
    free = []
    for alias in ALIASES:
        owner = _taken_by(alias)
        if owner is None:
            free.append(alias)
        else:
            print(f"the alias {alias!r} is left out: the distribution {owner!r} is installed")
    return free


def _tool(name: str) -> str | None:
    """A tool from this interpreter's environment, else from PATH; None where neither has one."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return shutil.which(name, path=path)


def _cmake() -> str:
    cmake = _tool("cmake")
    found = "none"
    if cmake is not None:
        text = subprocess.run([cmake, "--version"], capture_output=True, text=True).stdout
        match = re.search(r"(\d+)\.(\d+)", text)
        if match is not None and tuple(map(int, match.groups())) >= CMAKE_MINIMUM:
            return cmake
        found = f"{cmake} ({match.group() if match else 'which does not run'})"
    minimum = ".".join(map(str, CMAKE_MINIMUM))
    raise SystemExit(
        f"horizon-plugin needs cmake {minimum} or later, found {found}: pip install cmake"
    )


def _check_torch() -> None:
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        raise SystemExit(
            "horizon-plugin is built against the torch it will run with, and this environment has "
            "none: install torch first, then pip install --no-build-isolation ."
        ) from None
    print(f"building against torch {version}")


class BuildWithCMake(build_ext):
    """Runs CMake and installs into the package: the wheel's copy, or the source tree's."""

    def run(self) -> None:
        """Configure, build and install."""
        _check_torch()
        cmake, ninja = _cmake(), _tool("ninja")
        if ninja is None and _tool("make") is None:
            raise SystemExit("horizon-plugin needs ninja or make: pip install ninja")
        # setuptools sets editable_mode for `pip install -e`.
        in_place = bool(self.inplace or getattr(self, "editable_mode", False))
        package = (ROOT if in_place else Path(self.build_lib).resolve()) / "horizon_plugin"
        build = Path(self.build_temp).resolve() / "cmake"
        configure = [
            cmake,
            "-S",
            str(ROOT),
            "-B",
            str(build),
            "-DCMAKE_BUILD_TYPE=Release",
            "-DHORIZON_BUILD_TESTS=OFF",
            f"-DHORIZON_IN_PLACE={'ON' if in_place else 'OFF'}",
            f"-DHORIZON_CUDA={os.environ.get('HORIZON_CUDA', 'AUTO')}",
            f"-DPython3_EXECUTABLE={sys.executable}",
        ]
        if ninja is not None:
            configure += ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
        configure += shlex.split(os.environ.get("CMAKE_ARGS", ""))
        jobs = os.environ.get("MAX_JOBS") or str(os.cpu_count() or 1)
        for command in (
            configure,
            [cmake, "--build", str(build), "--parallel", jobs],
            [cmake, "--install", str(build), "--prefix", str(package)],
        ):
            print(shlex.join(command), flush=True)
            status = subprocess.run(command).returncode
            if status != 0:
                raise SystemExit(f"{command[1]} failed with status {status}: see the output above")


class BuildFromNothing(build_py):
    """Copies the Python files into an empty folder, so that no file of an older build is packed."""

    def run(self) -> None:
        """Empty the folder, then copy."""
        if not getattr(self, "editable_mode", False):
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


def _build_base() -> str:
    base = os.environ.get("HORIZON_BUILD_DIR", "build-wheel")
    (ROOT / base).mkdir(parents=True, exist_ok=True)
    return base


def main() -> None:
    """Hand over to setuptools."""
    aliases = _aliases()
    base = _build_base()
    setup(
        packages=[*find_packages(include=["horizon_plugin", "horizon_plugin.*"]), *aliases],
        package_dir={alias: f"aliases/{alias}" for alias in aliases},
        package_data={"horizon_plugin": ["py.typed"]},
        include_package_data=False,
        # No sources: CMake knows them. The entry makes the wheel one for this platform and Python.
        ext_modules=[Extension("horizon_plugin._C", sources=[])],
        cmdclass={"build_ext": BuildWithCMake, "build_py": BuildFromNothing},
        options={"build": {"build_base": base}, "egg_info": {"egg_base": base}},
    )


if __name__ == "__main__":
    main()
