"""Loads ``libhorizon_plugin`` and registers its operators with PyTorch."""

from __future__ import annotations

import json
from pathlib import Path

import torch

__version__ = "0.1.0"

_ROOT = Path(__file__).parent


def _check_torch(built: str) -> None:
    running = ".".join(torch.__version__.split("+")[0].split(".")[:2])
    if running != built:
        raise ImportError(
            f"horizon_plugin was built against torch {built}, but torch {running} is installed: "
            "rebuild it with `pip install --no-build-isolation .` or install that torch"
        )


def _load() -> None:
    library = _ROOT / "lib" / "libhorizon_plugin.so"
    if not library.exists():
        raise ImportError(
            f"{library} is missing: run `make build` in the project, or "
            "`pip install --no-build-isolation .`"
        )
    _check_torch(json.loads((_ROOT / "lib" / "build.json").read_text())["torch"])
    torch.ops.load_library(str(library))


_load()
