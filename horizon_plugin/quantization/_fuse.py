"""Finds groups by running the model, and fuses them."""

from __future__ import annotations

import warnings
from typing import Any

from torch import nn

from horizon_plugin import qat_mode
from horizon_plugin.quantization import _replacements
from horizon_plugin.quantization._call_record import Record
from horizon_plugin.quantization._fusion_report import UnfusedModule, add_notes
from horizon_plugin.quantization._module_tree import ModuleTree
from horizon_plugin.quantization._preflight import Preflight
from horizon_plugin.quantization._replacements import FuserMethods
from horizon_plugin.quantization._tied import fold_warnings
from horizon_plugin.quantization._trial import Trial
from horizon_plugin.quantization.fuse_modules import (
    check_mode,
    check_model,
    copied,
    custom_methods,
    refuse_wrapper,
)


class Found:
    """What a search found: groups, a hint for each, and what stays alone.

    Args:
        model: the model that `tree` and `record` describe.
    """

    def __init__(
        self, model: nn.Module, tree: ModuleTree, record: Record, methods: FuserMethods
    ) -> None:
        self.groups: list[_replacements.Group] = []
        self.hints: dict[tuple[str, ...], str] = {}
        groups, hints, self.left = _replacements.find(tree, record, methods)
        for group, hint in zip(groups, hints, strict=True):
            conflict = _replacements.place_conflict(model, tree, group)
            if conflict is not None:
                self.left += [
                    _replacements.LeftAlone(node, name, conflict, True)
                    for node, name in zip(group.members, group.names, strict=True)
                ]
                continue
            self.groups.append(group)
            if hint:
                self.hints[tuple(group.names)] = hint
        self._tree = tree

    def kind_of(self, node: int) -> str:
        """The class name of a node's module."""
        return self._tree.nodes[node][0]

    def leave(self, harmful: list[tuple[_replacements.Group, str]]) -> None:
        """Count groups, each with what it changes, among what stays alone."""
        for group, difference in harmful:
            text = f"fused, {group.names} would change what the model computes: {difference}"
            for node, name in zip(group.members, group.names, strict=True):
                self.left.append(_replacements.LeftAlone(node, name, text, True))

    def left_rows(self) -> list[tuple[str, str, str]]:
        """(name, class, reason) of what stays alone."""
        rows = sorted(self.left, key=lambda row: row.node)
        return [(row.name, self.kind_of(row.node), row.reason) for row in rows]


class UnfusedOperations(list[UnfusedModule]):
    """What `check_unfused_operations` returns: rows, printable.

    Attributes:
        groups: lists of names that `fuse_modules` would take as they are.
    """

    def __init__(self, rows: list[UnfusedModule], groups: list[list[str]]) -> None:
        super().__init__(rows)
        self.groups = groups

    def __str__(self) -> str:
        """One line a row."""
        if not self:
            return "nothing is left to fuse"
        return "\n".join(f"{row.name} ({row.kind}): {row.reason}" for row in self)


def check_unfused_operations(
    model: nn.Module,
    example_inputs: Any,
    *,
    mode: qat_mode.QATMode | str | None = None,
    allow_inner_hooks: bool = False,
    fuse_custom_config_dict: dict[str, Any] | None = None,
) -> UnfusedOperations:
    """What could be fused in `model` and is not, and why not; changes and prints nothing.

    Args:
        model: a float model, before or after fusions; of a prepared one, what remained.
        example_inputs: a tuple of the model's arguments (or a dict of keyword arguments); the
            model is run on them once, without a trace.
        mode, allow_inner_hooks, fuse_custom_config_dict: as for `fuse`.

    Returns:
        Rows of name, class and reason, with the groups that are ready to be fused in ``groups``.
        Modules beside which nothing fusable stands are not listed.
    """
    call = "check_unfused_operations"
    check_model(call, model)
    refuse_wrapper(call, model)
    methods = custom_methods(call, fuse_custom_config_dict)
    preflight = Preflight(call, example_inputs)
    with _replacements.overriding(check_mode(call, mode), allow_inner_hooks):
        tree = ModuleTree.of_model(model)
        record, _ = preflight.record(model, tree, custom_members(tree, methods))
        found = Found(model, tree, record, methods)
    rows = []
    for group in found.groups:
        text = f"could be fused: fuse_modules(model, [{group.names}])"
        hint = found.hints.get(tuple(group.names))
        text += f"; {hint}" if hint else ""
        rows.append(UnfusedModule(group.names[0], found.kind_of(group.members[0]), text))
    rows += [
        UnfusedModule(row.name, found.kind_of(row.node), row.reason)
        for row in found.left
        if row.blocked
    ]
    return UnfusedOperations(rows, [list(group.names) for group in found.groups])


def custom_members(tree: ModuleTree, methods: FuserMethods) -> set[int]:
    """The nodes of the classes that fusers of the user's take."""
    classes = {cls for types in methods for cls in types}
    return {i for i, module in enumerate(tree.modules) if type(module) in classes}


def fuse(
    model: nn.Module,
    example_inputs: Any,
    inplace: bool = False,
    *,
    mode: qat_mode.QATMode | str | None = None,
    allow_inner_hooks: bool = False,
    fuse_custom_config_dict: dict[str, Any] | None = None,
) -> nn.Module:
    """Find and fuse every group that is safe to fuse, by running the model.

    A group is safe if at each call of its convolution (or linear layer) the same members follow,
    in order, each called nowhere else, and no value between them is used twice or leaves the
    model. A group whose fusion changes the output all the same, say because the model reads an
    attribute of a member, is left alone. `fusion_report` of the result lists the groups, and what
    was left alone and why.

    Args:
        model: the float model, in train or eval mode.
        example_inputs: a tuple of the model's arguments (or a dict of keyword arguments) that
            reach what is to be fused. The model is run on them before and after, without a trace:
            statistics, random state, gradients and inputs stay as they are.
        inplace: change `model` itself and return it; otherwise a deep copy.
        mode, allow_inner_hooks, fuse_custom_config_dict: as for `fuse_modules`.

    Returns:
        The fused model. A call that raises changes nothing.

    Raises:
        FusionError: the model gives another output at each call, or cannot be copied.
        TypeError: an argument of the wrong type.
    """
    check_model("fuse", model)
    refuse_wrapper("fuse", model)
    methods = custom_methods("fuse", fuse_custom_config_dict)
    preflight = Preflight("fuse", example_inputs)
    with _replacements.overriding(check_mode("fuse", mode), allow_inner_hooks):
        tree = ModuleTree.of_model(model)
        record, output = preflight.record(model, tree, custom_members(tree, methods))
        found = Found(model, tree, record, methods)
        if not inplace:
            model = copied("fuse", model)
            tree = ModuleTree.of_model(model)
        replace_found(model, tree, found, methods, Trial(preflight, output), "fuse")
    return model


def replace_found(
    model: nn.Module,
    tree: ModuleTree,
    found: Found,
    methods: FuserMethods,
    trial: Trial | None,
    call: str,
) -> None:
    """Fuse in `model`, which may be a copy, the groups found, and note what is left alone.

    With a trial, groups that change what the model computes are left alone as well.

    Raises:
        FusionError: it computes something else without any group, too. The model is as before.
    """

    def planned(groups: list[_replacements.Group]) -> tuple[list[_replacements.Group], list[str]]:
        lists = [list(group.names) for group in groups]
        return _replacements.plan(tree, lists, methods) if lists else ([], [])

    def build(groups: list[_replacements.Group]) -> list[_replacements.Replacement]:
        return _replacements.build_all(tree, groups, methods)

    groups, messages = planned(found.groups)
    harmful = [] if trial is None else trial.harmful(model, tree, groups, build)
    if harmful:
        groups, messages = planned([g for g in groups if all(g is not bad for bad, _ in harmful)])
    messages = [message.replace("fuse_modules:", f"{call}:", 1) for message in messages]
    replacements = build(groups)
    for message in [*messages, *fold_warnings(call, tree, groups)]:
        warnings.warn(message, stacklevel=3)
    _replacements.apply(tree, groups, replacements)
    found.leave(harmful)
    add_notes(model, found.left_rows(), found.hints)
