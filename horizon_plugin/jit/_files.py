"""Files of TorchScript modules, with the version that wrote them."""

from __future__ import annotations

import json
import os
import re
from typing import Any

import torch

from horizon_plugin._library import __version__
from horizon_plugin.jit._objects import check, quiet

_ENTRY = "horizon_plugin.json"
#: Raised when a file's meaning changes; older files stay readable.
_FORMAT = 1


def save(obj: torch.jit.ScriptModule, path: str | os.PathLike[str]) -> None:
    """Write a ScriptModule to `path`, with its pairs, its report and the version that wrote it.

    The file is an ordinary TorchScript file: `torch.jit.load` and a C++ program that links
    libhorizon_plugin read it. TypeError for anything but a ScriptModule.
    """
    check("save", obj)
    if not isinstance(obj, torch.jit.ScriptModule):
        raise TypeError(f"save: 'obj' must be a ScriptModule, got {type(obj).__name__}")
    facts = {"format": _FORMAT, "horizon_plugin": __version__, "torch": torch.__version__}
    with quiet():
        torch.jit.save(obj, os.fspath(path), _extra_files={_ENTRY: json.dumps(facts)})


def _remedy(error: RuntimeError, path: str, facts: dict[str, Any]) -> str | None:
    unknown = re.search(r"Unknown builtin op: ([\w:]+)", str(error))
    if unknown is None:
        return None
    operator = unknown.group(1)
    library = operator.split("::")[0]
    if library in ("horizon", "annotation", "aten"):
        wrote = facts.get("horizon_plugin", "an unknown version")
        return (
            f"load: {path} needs {operator}, which horizon_plugin {__version__} on torch "
            f"{torch.__version__} does not have: it was written by {wrote} on torch "
            f"{facts.get('torch', 'of an unknown version')}; install those"
        )
    return f"load: {path} needs {operator}: import the library that registers '{library}' first"


def load(path: str | os.PathLike[str], map_location: Any = None) -> torch.jit.ScriptModule:
    """Read a TorchScript file, written by `save` or by `torch.jit.save`.

    Raises:
        FileNotFoundError: There is no such file.
        RuntimeError: A newer format, an operator that this installation lacks (with the remedy), or
            a file that is no TorchScript.
    """
    name = os.fspath(path)
    if not os.path.isfile(name):
        raise FileNotFoundError(f"load: 'path' must be a file, got {name!r}")
    try:
        reader: Any = torch._C.PyTorchFileReader(name)
    except RuntimeError as error:
        raise RuntimeError(f"load: {name} is no TorchScript file") from error
    entry = f"extra/{_ENTRY}"
    facts = json.loads(reader.get_record(entry)) if reader.has_record(entry) else {}
    if facts.get("format", 0) > _FORMAT:
        raise RuntimeError(
            f"load: {name} has format {facts['format']}, written by horizon_plugin "
            f"{facts['horizon_plugin']}; version {__version__} reads up to {_FORMAT}; upgrade"
        )
    if not reader.has_record("constants.pkl"):
        raise RuntimeError(f"load: {name} is no TorchScript file")
    try:
        with quiet():
            return torch.jit.load(name, map_location=map_location)
    except RuntimeError as error:
        remedy = _remedy(error, name, facts)
        if remedy is None:
            raise
        raise RuntimeError(remedy) from error
