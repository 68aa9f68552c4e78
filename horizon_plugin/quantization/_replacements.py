"""Plans groups of members and replaces them by fused modules."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from torch import nn

from horizon_plugin import _C, qat_mode
from horizon_plugin.nn import _family, _pending
from horizon_plugin.nn._fold import folded_parameters
from horizon_plugin.nn._pending import FusedGroup, FusionError
from horizon_plugin.nn.intrinsic import FAMILY
from horizon_plugin.quantization._call_record import Record
from horizon_plugin.quantization._collector import paused_collection
from horizon_plugin.quantization._module_tree import GROUP, OTHER_HOOKS, POSITION, ModuleTree

FuserMethods = dict[tuple[type, ...], Callable[..., nn.Module]]

_allow_inner_hooks: ContextVar[bool] = ContextVar("horizon_allow_inner_hooks", default=False)


class Group(NamedTuple):
    """A planned group; the fields are those of `_C.plan_fusion`."""

    members: list[int]
    names: list[str]
    custom: int
    variant: tuple[int, bool, bool, int]
    action: str
    slot: int
    qconfig: int


class LeftAlone(NamedTuple):
    """A module that is in no group; the fields are those of `_C.find_fusions`."""

    node: int
    name: str
    reason: str
    blocked: bool


class Replacement(NamedTuple):
    """New modules for the members of a group, and what to do once they are in place."""

    modules: list[nn.Module]
    finish: Callable[[], None]


@contextmanager
def overriding(mode: qat_mode.QATMode, allow_inner_hooks: bool) -> Iterator[None]:
    """Settings that `plan` and the fuser functions called below read."""
    token = _allow_inner_hooks.set(allow_inner_hooks)
    try:
        with qat_mode.override_qat_mode(mode):
            yield
    finally:
        _allow_inner_hooks.reset(token)


def plan(
    tree: ModuleTree, lists: list[list[str]], methods: FuserMethods, match_patterns: bool = True
) -> tuple[list[Group], list[str]]:
    """Resolve and check lists of names; returns groups and warnings."""
    try:
        groups, messages = _C.plan_fusion(
            tree.nodes,
            _names_of_groups(tree),
            lists,
            str(qat_mode.get_qat_mode()),
            _allow_inner_hooks.get(),
            match_patterns,
            _sequences(tree, methods),
        )
    except ValueError as error:
        raise FusionError(str(error)) from None
    return [Group(*group) for group in groups], messages


def find(
    tree: ModuleTree, record: Record, methods: FuserMethods
) -> tuple[list[Group], list[str], list[LeftAlone]]:
    """The groups that are safe to fuse, a hint for each, and what is left alone."""
    groups, hints, left = _C.find_fusions(
        tree.nodes,
        _names_of_groups(tree),
        record,
        str(qat_mode.get_qat_mode()),
        _allow_inner_hooks.get(),
        _sequences(tree, methods),
    )
    return [Group(*group) for group in groups], hints, [LeftAlone(*row) for row in left]


def check_calls(tree: ModuleTree, record: Record, groups: list[Group]) -> list[str]:
    """Refuse groups that a record shows to be unsafe; returns warnings."""
    planned = [(group.members, group.names) for group in groups]
    try:
        return _C.check_fusions(tree.nodes, _names_of_groups(tree), record, planned)
    except ValueError as error:
        raise FusionError(str(error)) from None


def _names_of_groups(tree: ModuleTree) -> list[list[str]]:
    return [list(group.names) for group in tree.groups]


def _sequences(tree: ModuleTree, methods: FuserMethods) -> list[list[int]]:
    return [[tree.type_id(t) for t in types] for types in methods]


def _mark(module: nn.Module, group: FusedGroup, position: int) -> nn.Module:
    module.__dict__[GROUP] = group
    module.__dict__[POSITION] = position
    return module


def _drop_hooks(module: nn.Module) -> None:
    """Empty the hooks of a batch norm that lives on inside a fused module."""
    for name in (
        *OTHER_HOOKS,
        "_forward_pre_hooks",
        "_forward_pre_hooks_with_kwargs",
        "_forward_hooks",
        "_forward_hooks_with_kwargs",
        "_forward_hooks_always_called",
    ):
        if module.__dict__.get(name):
            module.__dict__[name] = OrderedDict()


def _fused_module(group: Group, members: Sequence[nn.Module]) -> nn.Module:
    variant = _family.Variant(*group.variant)
    folds = group.action == "fold"
    cls = FAMILY[variant._replace(has_bn=False) if folds else variant]
    bn = members[1] if variant.has_bn else None
    fused: Any = cls(members[0]) if folds else cls(members[0], bn)
    if folds:
        weight, bias = folded_parameters(members[0], bn)
        fused._parameters.update(weight=weight, bias=bias)
    fused.__dict__.update(
        bn_frozen=group.action == "frozen",
        bn_folded=folds,
        fused_name=group.names[group.slot],
    )
    return fused


_BASE_PLACEHOLDERS = {
    _family.BASE_CONV2D: _pending.BasePlaceholder,
    _family.BASE_CONV_TRANSPOSE2D: _pending.TransposedPlaceholder,
    _family.BASE_LINEAR: _pending.BasePlaceholder,
}


def _build(group: Group, members: Sequence[nn.Module], qconfig: Any) -> Replacement:
    """The modules that replace `members`, which stay as they are until `finish`."""
    variant = _family.Variant(*group.variant)
    token = FusedGroup(tuple(group.names), group.slot if variant.has_add else -1, variant.has_bn)
    fused = _fused_module(group, members)
    fused.__dict__.pop("qconfig", None)
    if group.qconfig >= 0:
        fused.__dict__["qconfig"] = qconfig
    modules: list[nn.Module] = []
    for position, name in enumerate(group.names):
        module: nn.Module
        if position == group.slot:
            module = fused
        elif not variant.has_add:
            module = nn.Identity()
        elif position == 0:
            module = _BASE_PLACEHOLDERS[variant.base](token, name)
        elif position < group.slot:
            module = _pending.NormPlaceholder(token, name)
        else:
            module = _pending.ActivationPlaceholder(token, name)
        module.__dict__["training"] = members[position].training
        modules.append(_mark(module, token, position))
    if variant.has_add:
        fused.__dict__["_pending_token"] = token
        _family.move_hooks(modules[0], members[0], modules[0])
        _family.move_hooks(modules[-1], modules[-1], members[-1])
    else:
        _family.move_hooks(fused, members[0], members[-1])
    bn = members[1] if variant.has_bn else None
    return Replacement(modules, lambda: None if bn is None else _drop_hooks(bn))


def _takes_is_qat(method: Callable[..., Any]) -> bool:
    try:
        first = next(iter(inspect.signature(method).parameters), None)
    except (TypeError, ValueError):
        return False
    return first == "is_qat"


def _build_custom(
    group: Group, members: Sequence[nn.Module], method: Callable[..., Any]
) -> Replacement:
    """As `_build`, by a function of the user's: ``method(*members)``, or torch's
    ``method(is_qat, *members)``."""
    first = (members[0].training,) if _takes_is_qat(method) else ()
    fused = method(*first, *members)
    if not isinstance(fused, nn.Module):
        raise TypeError(
            f"fuse_modules: the fuser of {group.names} must return a module, got "
            f"{type(fused).__name__}"
        )
    modules: list[nn.Module] = [nn.Identity() for _ in members]
    modules[group.slot] = fused

    def finish() -> None:
        _family.move_hooks(fused, members[0], members[-1])
        _mark_new(group, members, modules)

    return Replacement(modules, finish)


def _mark_new(group: Group, members: Sequence[nn.Module], modules: Sequence[nn.Module]) -> None:
    """Remember the group on modules that a fuser of the user's has made."""
    token = FusedGroup(tuple(group.names))
    for position, module in enumerate(modules):
        known = module.__dict__.get(GROUP)
        if known is not None:
            known.names = token.names
            if "fused_name" in module.__dict__:
                module.__dict__["fused_name"] = group.names[position]
        elif not any(module is member for member in members):
            _mark(module, token, position)


@paused_collection()
def build_all(tree: ModuleTree, groups: list[Group], methods: FuserMethods) -> list[Replacement]:
    """What replaces each group's members; the model stays as it is."""
    functions = list(methods.values())
    result = []
    for group in groups:
        members = [tree.modules[node] for node in group.members]
        if group.custom >= 0:
            result.append(_build_custom(group, members, functions[group.custom]))
        else:
            qconfig = tree.qconfig(group.qconfig) if group.qconfig >= 0 else None
            result.append(_build(group, members, qconfig))
    return result


def build_by(
    fuser_func: Callable[..., Any], tree: ModuleTree, groups: list[Group], methods: FuserMethods
) -> list[Replacement]:
    """As `build_all`, by a function of the user's."""
    result = []
    for group in groups:
        members = [tree.modules[node] for node in group.members]
        modules = fuser_func(list(members), methods)
        if not isinstance(modules, (list, tuple)) or not all(
            isinstance(module, nn.Module) for module in modules
        ):
            raise TypeError(
                f"fuse_modules: 'fuser_func' must return a list of modules, got {modules!r} for "
                f"{group.names}"
            )
        if len(modules) != len(members):
            raise FusionError(
                f"fuse_modules: 'fuser_func' must return {len(members)} modules for "
                f"{group.names}, got {len(modules)}"
            )

        def finish(
            group: Group = group,
            members: list[nn.Module] = members,
            modules: Sequence[nn.Module] = modules,
        ) -> None:
            _mark_new(group, members, modules)

        result.append(Replacement(list(modules), finish))
    return result


def place_conflict(model: nn.Module, tree: ModuleTree, group: Group) -> str | None:
    """Why a group cannot be fused whose member also stands where the rest of it does not."""
    found = tree.other_place(group.members)
    if found is None:
        return None
    position, parent, name = found
    path = next(path for path, module in model.named_modules() if module is parent)
    return (
        f"'{group.names[position]}' is also '{path + '.' if path else ''}{name}', one module in two"
        " places, and the rest of its group is not there: give each place a module of its own, or "
        "leave the group out"
    )


def check_places(model: nn.Module, tree: ModuleTree, groups: list[Group]) -> None:
    """Refuse a member that also stands outside its group, where it would change as well."""
    for group in groups:
        conflict = place_conflict(model, tree, group)
        if conflict is not None:
            raise FusionError(f"fuse_modules: {conflict}")


def apply(tree: ModuleTree, groups: list[Group], replacements: list[Replacement]) -> None:
    """Write every slot of every member; nothing here can fail."""
    for group, replacement in zip(groups, replacements, strict=True):
        for node, module in zip(group.members, replacement.modules, strict=True):
            for parent, name in tree.places_of(node, group.members[0]):
                parent._modules[name] = module
        replacement.finish()
