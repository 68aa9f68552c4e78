"""The three kinds of TorchScript objects that the passes take, and what they have in common."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

T = TypeVar("T", torch.Graph, torch.jit.ScriptModule, torch.jit.ScriptFunction)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence TorchScript's own deprecation warnings, around calls that the package makes."""
    with warnings.catch_warnings():
        for category in (DeprecationWarning, FutureWarning):
            warnings.filterwarnings("ignore", r".*torch\.jit", category)
        yield


def check(call: str, obj: Any) -> None:
    """TypeError unless `obj` is a Graph, ScriptModule (with a `forward`) or ScriptFunction."""
    if isinstance(obj, torch.jit.ScriptModule):
        # A module that is still being made has no C++ side yet.
        inner = getattr(obj, "_c", None)
        if inner is not None and inner._has_method("forward"):
            return
        raise ValueError(f"{call}: 'obj' must be a module with a forward method, got none")
    if not isinstance(obj, (torch.Graph, torch.jit.ScriptFunction)):
        raise TypeError(
            f"{call}: 'obj' must be a torch Graph, ScriptModule or ScriptFunction, "
            f"got {type(obj).__name__}; trace or script it first"
        )


def graph_of(obj: Any) -> torch.Graph:
    """The graph that runs: of `forward` for a module."""
    if isinstance(obj, torch.Graph):
        return obj
    if isinstance(obj, torch.jit.ScriptFunction):
        return obj.graph
    return obj._c._get_method("forward").graph


def wrap(module: Any) -> torch.jit.ScriptModule:
    """The Python side of a C++ module."""
    with quiet():
        return torch.jit._recursive.wrap_cpp_module(module)


def with_graph(obj: Any, change: Callable[[torch.Graph], torch.Graph]) -> Any:
    """An object of the same kind whose graph is what `change` makes of a Graph's or function's."""
    graph = change(graph_of(obj))
    if isinstance(obj, torch.Graph):
        return graph
    with quiet():
        return torch._C._create_function_from_graph(obj.name, graph)
