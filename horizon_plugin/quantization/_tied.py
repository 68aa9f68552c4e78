"""Parameters that several modules share, which a fold of one of them would take apart."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from horizon_plugin.quantization._module_tree import ModuleTree
from horizon_plugin.quantization._replacements import Group

Holder = tuple[int, str]  # node, name of the parameter


def _parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    if not isinstance(module, torch.jit.ScriptModule):
        for name, parameter in module._parameters.items():
            if parameter is not None:
                yield name, parameter


def fold_warnings(call: str, tree: ModuleTree, groups: list[Group]) -> list[str]:
    """A warning for each group whose fold makes anew what a module outside shares with it."""
    folding = [group for group in groups if group.action == "fold"]
    if not folding:
        return []
    holders: dict[int, list[Holder]] = {}
    for node, module in enumerate(tree.modules):
        for name, parameter in _parameters(module):
            holders.setdefault(id(parameter), []).append((node, name))
    messages = []
    for group in folding:
        ties = []
        for member, path in zip(group.members[:2], group.names[:2], strict=True):
            for name, parameter in _parameters(tree.modules[member]):
                for node, other in holders[id(parameter)]:
                    if node not in group.members[:2]:
                        theirs = ".".join(filter(None, (tree.path_of(node), other)))
                        ties.append(f"'{path}.{name}' from '{theirs}'")
        if ties:
            messages.append(
                f"{call}: folding {group.names} unties {', '.join(ties)}: the folded layer "
                "gets parameters of its own, and the others stay as they are; mode='with_bn' keeps "
                "them tied"
            )
    return messages
