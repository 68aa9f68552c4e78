"""Makes a traced model's adds and activations modules, so that they can be members of groups."""

from __future__ import annotations

import operator
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from horizon_plugin.quantization._fx_trace import is_functional, owner_of
from horizon_plugin.quantization._module_tree import GROUP
from horizon_plugin.quantization.float_functional import FloatFunctional

_ADDS = (operator.add, operator.iadd, torch.add)
_ADD_METHODS = ("add", "add_")
_RELUS = (F.relu, torch.relu, torch.relu_, F.relu_)
_RELU_METHODS = ("relu", "relu_")
_BASES = (nn.Conv2d, nn.ConvTranspose2d, nn.Linear)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.SyncBatchNorm)
_ACTIVATIONS = (nn.ReLU, nn.ReLU6, nn.Hardtanh)


def _module(graph_module: fx.GraphModule, node: Any) -> nn.Module | None:
    """The module that a node calls, or the FloatFunctional whose method it calls."""
    if not isinstance(node, fx.Node):
        return None
    if node.op == "call_module":
        return graph_module.get_submodule(str(node.target))
    holder = node.args[0] if node.op == "call_method" and node.args else None
    if isinstance(holder, fx.Node) and holder.op == "get_attr":
        found = _attribute(graph_module, str(holder.target))
        if isinstance(found, nn.Module) and is_functional(found):
            return found
    return None


def _attribute(root: nn.Module, path: str) -> Any:
    value: Any = root
    for name in path.split(".") if path else ():
        value = getattr(value, name, None)
    return value


class Rewriter:
    """Rewrites the graph of a traced model, without changing what it computes.

    Identities disappear; an activation that is called several times becomes as many modules; an
    add, relu or relu6 that follows a convolution, transposed convolution or linear layer (with or
    without a batch norm) becomes a module of its own beside the code that it stood in.
    """

    def __init__(self, graph_module: fx.GraphModule, model: nn.Module) -> None:
        self._gm = graph_module
        self._model = model
        self._made: dict[tuple[str, str], str] = {}

    def run(self) -> None:
        """Rewrite and recompile."""
        self._drop_identities()
        self._split_activations()
        for node in list(self._gm.graph.nodes):
            if self._is_raw_add(node):
                self._insert_add(node)
            else:
                self._insert_activation(node)
        self._gm.graph.lint()
        self._gm.recompile()

    # --- What nodes are -------------------------------------------------------------------------

    def _is_group_result(self, node: Any, kinds: tuple[type, ...] = (*_BASES, *_NORMS)) -> bool:
        """Whether `node` is the result of a base, or of a batch norm behind one."""
        module = _module(self._gm, node)
        if module is None or type(module) not in kinds or GROUP in module.__dict__:
            return False
        return type(module) in _BASES or self._is_group_result(_first(node), _BASES)

    def _is_add_result(self, node: Any) -> bool:
        module = _module(self._gm, node)
        return module is not None and is_functional(module) and node.target == "add"

    def _is_raw_add(self, node: Any) -> bool:
        is_add = (node.op == "call_function" and node.target in _ADDS) or (
            node.op == "call_method" and node.target in _ADD_METHODS
        )
        if not is_add or node.kwargs or len(node.args) != 2 or _module(self._gm, node) is not None:
            return False
        if not all(isinstance(arg, fx.Node) and not _is_size(arg) for arg in node.args):
            return False
        writes = node.target in (operator.iadd, "add_")
        if writes and not self._is_written_unseen(node):
            return False
        return any(self._is_group_result(arg) and len(arg.users) == 1 for arg in node.args)

    def _is_written_unseen(self, node: fx.Node) -> bool:
        """Whether nobody else can see that an in-place op writes into its first operand."""
        target: Any = node.args[0]
        return len(target.users) == 1 and (
            self._is_group_result(target) or self._is_add_result(target)
        )

    def _activation_for(self, node: Any) -> nn.Module | None:
        if _module(self._gm, node) is not None or not node.args:
            return None
        extra = dict(node.kwargs)
        in_place = extra.pop("inplace", False)
        function, method = node.op == "call_function", node.op == "call_method"
        if len(node.args) == 2 and node.target in (F.relu, F.relu6):
            in_place = node.args[1]
        elif len(node.args) != 1 or extra:
            bounds = (*node.args[1:], extra.get("min_val"), extra.get("max_val"))
            bounds = tuple(b for b in bounds if b is not None)
            if not (function and node.target is F.hardtanh and bounds == (0, 6)):
                return None
            return nn.ReLU6(inplace=in_place)
        if function and node.target is F.relu6:
            return nn.ReLU6(inplace=in_place)
        if (function and node.target in _RELUS) or (method and node.target in _RELU_METHODS):
            return nn.ReLU(inplace=in_place or str(_name(node)).endswith("_"))
        return None

    # --- Rewrites -------------------------------------------------------------------------------

    def _drop_identities(self) -> None:
        unused: set[str] = set()
        for node in list(self._gm.graph.nodes):
            module = _module(self._gm, node) if node.op == "call_module" else None
            if module is None or type(module) is not nn.Identity:
                continue
            if _has_hooks(module) or GROUP in module.__dict__:
                continue
            if len(node.args) == 1 and not node.kwargs:
                node.replace_all_uses_with(node.args[0])
                self._gm.graph.erase_node(node)
                unused.add(str(node.target))
        unused -= {str(node.target) for node in self._gm.graph.nodes}
        for path in unused:
            self._gm.delete_submodule(path)

    def _split_activations(self) -> None:
        # A shared head calls its convolution and its activation equally often: they stay together.
        owners: dict[int, str] = {}
        for node in list(self._gm.graph.nodes):
            module = _module(self._gm, node) if node.op == "call_module" else None
            if module is None or type(module) not in _ACTIVATIONS:
                continue
            source = self._place(_first(node))
            if owners.setdefault(id(module), source) != source:
                name = str(node.target).rpartition(".")[2]
                node.target = self._module_for(node, source, name, partial(deepcopy, module))

    def _insert_add(self, node: Any) -> None:
        own = next(arg for arg in reversed(node.args) if self._is_group_result(arg))
        path = self._module_for(node, self._place(own), "add", FloatFunctional)
        with self._gm.graph.inserting_before(node):
            holder = self._gm.graph.get_attr(path)
            added = self._gm.graph.call_method("add", (holder, *node.args))
        self._replace(node, added)

    def _insert_activation(self, node: Any) -> None:
        activation = self._activation_for(node)
        if activation is None:
            return
        source = node.args[0]
        if not (self._is_group_result(source) or self._is_add_result(source)):
            return
        name = "relu6" if isinstance(activation, nn.ReLU6) else "relu"
        path = self._module_for(node, self._place(source), name, lambda: activation)
        with self._gm.graph.inserting_before(node):
            self._replace(node, self._gm.graph.call_module(path, (source,)))

    def _place(self, node: Any) -> str:
        """The path of the module that made `node`; else what tells the node from others."""
        if not isinstance(node, fx.Node):
            return ""
        if node.op == "call_module":
            return str(node.target)
        if _module(self._gm, node) is not None:
            return str(_first(node).target)
        return f"%{node.name}"

    def _module_for(
        self, node: fx.Node, source: str, name: str, make: Callable[[], nn.Module]
    ) -> str:
        """The path of the module that follows `source` instead of `node`: one for all calls."""
        path = self._made.get((source, name))
        if path is None:
            path = self._made[source, name] = self._add_module(owner_of(node), name, make())
        return path

    def _replace(self, node: fx.Node, new: fx.Node) -> None:
        new.meta.update(node.meta)
        node.replace_all_uses_with(new)
        self._gm.graph.erase_node(node)

    def _add_module(self, owner: str, name: str, module: nn.Module) -> str:
        """Put `module` beside the owner's own attributes, under a name that is free there."""
        holders = [_attribute(root, owner) for root in (self._gm, self._model)]
        number, free = 1, name
        while any(hasattr(holder, free) for holder in holders):
            free, number = f"{name}_{number}", number + 1
        path = f"{owner}.{free}" if owner else free
        module.train(self._model.get_submodule(owner).training)
        self._gm.add_submodule(path, module)
        return path


def _first(node: fx.Node) -> Any:
    return node.args[0] if node.args else None


def _name(node: fx.Node) -> str:
    target: str | Callable[..., Any] = node.target
    return target if isinstance(target, str) else target.__name__


def _is_size(node: fx.Node) -> bool:
    """Whether a node surely gives no tensor but a number or shape."""
    if node.op == "call_method" and node.target in ("size", "dim", "numel", "item"):
        return True
    if node.op == "call_function" and node.target is getattr:
        return True
    if node.op == "call_function" and node.target is operator.getitem:
        return isinstance(node.args[0], fx.Node) and _is_size(node.args[0])
    return False


def _has_hooks(module: nn.Module) -> bool:
    return bool(module._forward_pre_hooks or module._forward_hooks)
