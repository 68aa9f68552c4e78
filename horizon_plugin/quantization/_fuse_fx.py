"""Finds groups on a symbolic trace, where code can be rewritten, and fuses them."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx, nn

from horizon_plugin import qat_mode
from horizon_plugin.quantization import _replacements
from horizon_plugin.quantization._call_record import METADATA, Record, op_name
from horizon_plugin.quantization._fuse import Found, custom_members, replace_found
from horizon_plugin.quantization._fx_rewrite import Rewriter
from horizon_plugin.quantization._fx_trace import fx_leaves, owner_of, trace
from horizon_plugin.quantization._module_tree import ModuleTree
from horizon_plugin.quantization._preflight import Preflight
from horizon_plugin.quantization._trial import Trial
from horizon_plugin.quantization.fuse_modules import (
    check_mode,
    check_model,
    copied,
    custom_methods,
    refuse_wrapper,
)

# What gives a tensor that shares memory with its first argument.
_VIEW_METHODS = frozenset(
    "view reshape flatten permute transpose squeeze unsqueeze chunk split expand narrow select t "
    "contiguous detach view_as expand_as unbind swapaxes movedim type to float".split()
)
_VIEW_FUNCTIONS = (operator.getitem, torch.flatten, torch.reshape, torch.chunk, torch.split)
_VIEW_MODULES = (nn.Flatten, nn.Unflatten, nn.Identity, nn.Dropout, nn.Dropout2d)

_AUGMENTED = frozenset("isub imul itruediv ifloordiv imod ipow iand ior ixor".split())


class _GraphRecord:
    """What `CallRecorder` would have seen in a run of a traced model, as far as a graph shows it:
    numbers of dimensions are unknown, memory is shared where an op may give a view."""

    def __init__(self, tree: ModuleTree, traced: fx.GraphModule) -> None:
        self._nodes = {path: i for i, path in enumerate(tree.paths())}
        self._modules = tree.modules
        self._values: dict[fx.Node, int] = {}
        self._storages: list[int] = []
        self._calls: list[tuple[Any, ...]] = []
        self._results: list[int] = []
        for node in traced.graph.nodes:
            self._add(node)

    def record(self) -> Record:
        """In the form that the search takes."""
        return self._calls, [(storage, -1) for storage in self._storages], self._results, []

    def _inputs(self, node: fx.Node) -> list[int]:
        arguments = fx_leaves((node.args, node.kwargs))
        return [self._values[a] for a in arguments if a in self._values]

    def _new_value(self, node: fx.Node, shared_with: int | None) -> int:
        number = self._values[node] = len(self._storages)
        self._storages.append(number if shared_with is None else self._storages[shared_with])
        return number

    def _add(self, node: fx.Node) -> None:
        if node.op == "output":
            self._results = self._inputs(node)
            return
        if node.op == "placeholder":
            self._new_value(node, None)
            return
        if node.op == "get_attr":
            if str(node.target) not in self._nodes:
                self._new_value(node, None)
            return
        inputs = self._inputs(node)
        module, op = -1, ""
        if node.op == "call_module":
            module = self._nodes[str(node.target)]
        else:
            op = str(node.target) if node.op == "call_method" else op_name(node.target)
            holder = node.args[0] if node.args else None
            if isinstance(holder, fx.Node) and holder.op == "get_attr":
                module = self._nodes.get(str(holder.target), -1)
        if module < 0:
            op = self._op(node, op)
        writes = self._writes(node, module, op)
        shared = inputs[0] if inputs and (writes or self._is_view(node, module)) else None
        changed = [self._storages[inputs[0]]] if inputs and writes else []
        metadata = module < 0 and op in METADATA
        outputs = [] if metadata else [self._new_value(node, shared)]
        owner = self._nodes.get(owner_of(node), 0)
        self._calls.append((module, op, owner, inputs, outputs, changed, metadata))

    def _op(self, node: fx.Node, name: str) -> str:
        if node.target is getattr:
            return str(node.args[1])
        return {"add": "+", "iadd": "+=", "add_": "+="}.get(name, name)

    def _writes(self, node: fx.Node, module: int, op: str) -> bool:
        if module >= 0:
            return node.op == "call_module" and getattr(self._modules[module], "inplace", False)
        if op == "+=" or node.kwargs.get("inplace") or "out" in node.kwargs:
            return True
        name = op_name(node.target) if node.op == "call_function" else op
        is_operator = getattr(node.target, "__module__", "") == "_operator"
        return (name.endswith("_") and not name.endswith("__")) or (
            is_operator and (name == "setitem" or name in _AUGMENTED)
        )

    def _is_view(self, node: fx.Node, module: int) -> bool:
        if module >= 0:
            return isinstance(self._modules[module], _VIEW_MODULES)
        if node.op == "call_method":
            return node.target in _VIEW_METHODS
        return node.target in _VIEW_FUNCTIONS


def fuse_fx(
    model: nn.Module,
    example_inputs: Any = None,
    inplace: bool = False,
    *,
    mode: qat_mode.QATMode | str | None = None,
    allow_inner_hooks: bool = False,
    fuse_custom_config_dict: dict[str, Any] | None = None,
) -> fx.GraphModule:
    """Trace `model` symbolically, find every group that is safe to fuse, and fuse it.

    Beyond `fuse`, the traced code is rewritten where that makes a group: ``x + y`` and `torch.add`
    behind a convolution or linear layer become a FloatFunctional, functional relu and relu6 become
    modules, an activation called at several places becomes a module for each, and identities
    disappear. Stubs, FloatFunctionals and fused modules are leaves of the trace.

    Args:
        model: the float model, in train or eval mode; its forward must be traceable (no branch on
            values of tensors).
        example_inputs: if given, a tuple of the model's arguments (or a dict of keyword
            arguments); the model is run on them before and after, without a trace of it.
        inplace: take the modules of `model` itself into the result instead of a copy's.
        mode, allow_inner_hooks, fuse_custom_config_dict: as for `fuse_modules`.

    Returns:
        A `torch.fx.GraphModule`; `fusion_report` lists its groups and what was left alone.

    Raises:
        FusionError: the model cannot be traced (the line is named), or its trace computes
            something else.
        TypeError: an argument of the wrong type.
    """
    check_model("fuse_fx", model)
    refuse_wrapper("fuse_fx", model)
    methods = custom_methods("fuse_fx", fuse_custom_config_dict)
    preflight = None if example_inputs is None else Preflight("fuse_fx", example_inputs)
    chosen = check_mode("fuse_fx", mode)
    output: Any = None
    if preflight is not None:
        output = preflight.output(model)
    if not inplace:
        model = copied("fuse_fx", model)
    leaves = tuple({cls for types in methods for cls in types})
    traced = trace(model, leaves)
    Rewriter(traced, model).run()
    with _replacements.overriding(chosen, allow_inner_hooks):
        tree = ModuleTree.of_model(traced)
        if preflight is None:
            record = _GraphRecord(tree, traced).record()
        else:
            record, _ = preflight.record(traced, tree, custom_members(tree, methods))
        found = Found(traced, tree, record, methods)
        trial = None if preflight is None else Trial(preflight, output)
        replace_found(traced, tree, found, methods, trial, "fuse_fx")
    return traced
