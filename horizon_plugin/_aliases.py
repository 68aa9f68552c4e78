"""Makes ``horizon`` and ``horizon_plugin_pytorch`` names of this package.

An alias is not a second copy: ``horizon.quantization`` *is* ``horizon_plugin.quantization``, so
classes, pickles and ``isinstance`` agree whichever name imported them first.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

_REAL = "horizon_plugin"


class _AliasLoader(Loader):
    """Hands out the module of the real name instead of loading a file again."""

    def __init__(self, real: str) -> None:
        self._real = real
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._real)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The import system has set the alias's spec on the module; the module keeps its own.
        module.__spec__ = self._spec


class _AliasFinder(MetaPathFinder):
    """Finds submodules of an alias, first on ``sys.meta_path``.

    The path finder would load ``horizon.nn`` from the real package's folder as a second module.
    """

    def __init__(self, alias: str) -> None:
        self._prefix = alias + "."

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if not fullname.startswith(self._prefix):
            return None
        real = f"{_REAL}.{fullname.removeprefix(self._prefix)}"
        spec = importlib.util.find_spec(real)
        if spec is None:  # the path finder will not find it either, and says so under this name
            return None
        return ModuleSpec(
            fullname,
            _AliasLoader(real),
            origin=spec.origin,
            is_package=spec.submodule_search_locations is not None,
        )


def _another(alias: str, own: Path) -> ModuleSpec | None:
    """Somebody else's package of the alias's name on ``sys.path``, if there is one."""
    root = own.parent.parent.resolve()
    elsewhere = [entry for entry in sys.path if Path(entry or ".").resolve() != root]
    spec = PathFinder.find_spec(alias, elsewhere)
    # A folder without __init__.py is nothing that someone installed, and a second copy of this
    # project (installed, beside its source tree) has the same few lines.
    if spec is None or spec.origin is None:
        return None
    return None if Path(spec.origin).read_bytes() == own.read_bytes() else spec


def install(alias: str, file: str) -> None:
    """Replace the module ``alias``, whose ``__init__.py`` is ``file``, by the real package.

    A package of that name elsewhere on ``sys.path`` is somebody else's and is imported instead.
    """
    other = _another(alias, Path(file))
    if other is not None and other.loader is not None:
        module = importlib.util.module_from_spec(other)
        sys.modules[alias] = module
        other.loader.exec_module(module)
        return
    real = importlib.import_module(_REAL)
    sys.meta_path.insert(0, _AliasFinder(alias))
    sys.modules[alias] = real
