"""Loads ``libhorizon_plugin``, which registers its operators with PyTorch."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

_ROOT = Path(__file__).parent

#: The folder to pass to CMake as ``HorizonPlugin_DIR``.
cmake_dir = str(_ROOT / "share" / "cmake" / "HorizonPlugin")

_REBUILD = "build it again: `pip install --no-build-isolation .`, or `make build` in the project"


def _minor(version: str) -> str:
    return ".".join(version.split("+")[0].split(".")[:2])


def _check_build(built: dict[str, str], torch_version: str, python_version: str) -> None:
    """Refuse a library that was built for another PyTorch or Python; both change its ABI."""
    if _minor(torch_version) != built["torch"]:
        raise ImportError(
            f"horizon_plugin was built against torch {built['torch']}, but torch {torch_version} "
            f"is installed; install torch {built['torch']}, or {_REBUILD}"
        )
    if _minor(python_version) != built["python"]:
        raise ImportError(
            f"horizon_plugin was built for Python {built['python']}, but this is Python "
            f"{_minor(python_version)}; {_REBUILD}"
        )


def _load() -> str:
    library = _ROOT / "lib" / "libhorizon_plugin.so"
    facts = _ROOT / "lib" / "build.json"
    if not library.exists() or not facts.exists():
        raise ImportError(f"{library} is missing; {_REBUILD}")
    built = json.loads(facts.read_text(encoding="utf-8"))
    _check_build(built, torch.__version__, sys.version.split()[0])
    torch.ops.load_library(str(library))
    return str(built["version"])


__version__ = _load()
