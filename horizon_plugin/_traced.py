"""GraphModules that keep what is set on them when they are copied or pickled.

torch copies and pickles a GraphModule by its code: attributes of the root and of the containers
inside (qconfig, training flags, hooks) are lost on the way. Without its qconfig a copy would be
left float silently.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.fx
from torch import nn

Attributes = dict[str, dict[str, Any]]

# What a copy has of its own.
_STRUCTURE = ("_modules", "_parameters", "_buffers", "_graph")


def attributes_of(model: torch.fx.GraphModule) -> Attributes:
    """Path -> attributes, of the root and of the bare containers that a trace makes."""
    return {
        path: {name: value for name, value in module.__dict__.items() if name not in _STRUCTURE}
        for path, module in model.named_modules()
        if module is model or type(module) is nn.Module
    }


def take_attributes(model: nn.Module, attributes: Attributes) -> None:
    """Set on `model`, a copy, what `attributes_of` found and the copy lacks."""
    for path, module in model.named_modules():
        for name, value in attributes.get(path, {}).items():
            is_hooks = "hook" in name and isinstance(value, dict)
            if is_hooks or name == "training" or name not in module.__dict__:
                module.__dict__[name] = value


def copy_traced(model: Any, deepcopy: Any, memo: dict[int, Any]) -> nn.Module:
    """``deepcopy(model, memo)``, torch's, with all attributes."""
    copied = deepcopy(model, memo)
    take_attributes(copied, copy.deepcopy(attributes_of(model), memo))
    return copied


def copy_model(model: nn.Module) -> nn.Module:
    """A deep copy; of a GraphModule one with all attributes."""
    if isinstance(model, torch.fx.GraphModule):
        return copy_traced(model, copy.deepcopy, {})
    return copy.deepcopy(model)


def _rebuild(function: Any, arguments: tuple[Any, ...], attributes: Attributes) -> nn.Module:
    traced = function(*arguments)
    model = TracedModel(traced, traced.graph, type(traced).__name__)
    take_attributes(model, attributes)
    return model


class TracedModel(torch.fx.GraphModule):
    """What `fuse_fx` returns: a GraphModule whose copies and pickles keep qconfigs and hooks."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A copy with the attributes of root and containers."""
        return copy_traced(self, torch.fx.GraphModule.__deepcopy__, memo)

    def __reduce__(self) -> tuple[Any, ...]:
        """By code, as for every GraphModule, with the attributes besides."""
        return _rebuild, (*super().__reduce__(), attributes_of(self))
