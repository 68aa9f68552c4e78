"""The groups of a partitioned graph: looking at them, running them, handing them to a backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from horizon_plugin import _C
from horizon_plugin.jit._objects import quiet, wrap
from horizon_plugin.jit._partition import recorded_graph


@dataclass(frozen=True)
class Group:
    """One quantizable group of a partitioned graph.

    `entries` and `exits` are names of values in `owner`, the partitioned graph: what the group
    reads (the results of pairs first) and what others read of it. `nodes` are the owner's, in the
    order of execution; `anchor` is the convolution among them, None where an add or mul begins.
    `graph` is the group alone: entries in, exits out, as a tuple unless there is exactly one.
    """

    index: int
    anchor: torch.Node | None
    nodes: tuple[torch.Node, ...]
    entries: tuple[str, ...]
    exits: tuple[str, ...]
    graph: torch.Graph = field(repr=False)
    owner: torch.Graph = field(repr=False)

    def function(self) -> torch.jit.ScriptFunction:
        """The group as a function that runs."""
        with quiet():
            return torch._C._create_function_from_graph(f"group_{self.index}", self.graph.copy())

    def module(self) -> torch.jit.ScriptModule:
        """The group as a module that runs, without submodules and parameters."""
        return wrap(_C.jit_as_module(self.graph, f"horizon_plugin.Group{self.index}"))


def _all_nodes(block: Any) -> Iterator[torch.Node]:
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from _all_nodes(inner)


def groups(obj: Any) -> tuple[Group, ...]:
    """The groups of a partitioned object, blocks included, in the order of execution.

    TypeError for foreign objects, ValueError where there was no partition.
    """
    graph = recorded_graph("groups", obj)
    nodes = list(_all_nodes(graph))
    return tuple(
        Group(
            index=index,
            anchor=None if anchor < 0 else nodes[anchor],
            nodes=tuple(nodes[place] for place in places),
            entries=tuple(entries),
            exits=tuple(exits),
            graph=own,
            owner=graph,
        )
        for index, (anchor, places, entries, exits, own) in enumerate(_C.jit_groups(graph))
    )


Backend = Callable[[Group], torch.jit.ScriptModule | None]


def _compiled(group: Group, backend: Backend | None) -> torch.jit.ScriptModule:
    module = None if backend is None else backend(group)
    if module is None:
        return group.module()
    if not isinstance(module, torch.jit.ScriptModule) or not module._c._has_method("forward"):
        raise TypeError(
            "delegate: 'backend' must return a ScriptModule with a forward, or None to leave the "
            f"group as it is, got {type(module).__name__} for group {group.index}"
        )
    takes = len(list(module._c._get_method("forward").graph.inputs())) - 1
    if takes != len(group.entries):
        raise ValueError(
            f"delegate: 'backend' must return a module that takes the {len(group.entries)} "
            f"entries of group {group.index}, got one that takes {takes}"
        )
    return module


def delegate(obj: torch.jit.ScriptModule, backend: Backend | None = None) -> torch.jit.ScriptModule:
    """A copy of a partitioned module in which every group is a call of a submodule, `group_<i>`.

    `backend` is where a compiler comes in: it is called with each `Group` and returns the
    ScriptModule to run in its place (the group's entries in, its exits out), or None to leave the
    group as it is. Without a backend the result computes the same bits as `obj`.

    A group with operators that write in place stays where it is, and its module is not used.

    Raises:
        TypeError: `obj` is no ScriptModule, or the backend returns something else.
        ValueError: `obj` was not partitioned, or a module takes another number of entries.
    """
    if not isinstance(obj, torch.jit.ScriptModule):
        raise TypeError(
            f"delegate: 'obj' must be a partitioned ScriptModule, got {type(obj).__name__}"
        )
    modules = [_compiled(group, backend)._c for group in groups(obj)]
    return wrap(_C.jit_delegate(obj._c, modules))
