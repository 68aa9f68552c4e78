"""Replaces sequences of modules by fused ones."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import nn

from horizon_plugin import _C, qat_mode
from horizon_plugin.nn import _family, _pending
from horizon_plugin.nn._fold import folded_parameters
from horizon_plugin.nn._pending import FusedGroup, FusionError
from horizon_plugin.nn.intrinsic import FAMILY
from horizon_plugin.quantization._module_tree import GROUP, POSITION, ModuleTree

__all__ = ["FusionError", "fuse_known_modules", "fuse_modules"]

FuserMethods = dict[tuple[type, ...], Callable[..., nn.Module]]

_allow_inner_hooks: ContextVar[bool] = ContextVar("horizon_allow_inner_hooks", default=False)


class _Group(NamedTuple):
    """A planned group; the fields are those of `_C.plan_fusion`."""

    members: list[int]
    names: list[str]
    custom: int
    variant: tuple[int, bool, bool, int]
    action: str
    slot: int
    qconfig: int


class _Replacement(NamedTuple):
    """New modules for the members of a group, and what to do once they are in place."""

    modules: list[nn.Module]
    finish: Callable[[], None]


# --- Arguments ----------------------------------------------------------------------------------


def _to_name(name: Any) -> str:
    if isinstance(name, str):
        return name if name.isascii() else name.encode(errors="replace").decode()
    if isinstance(name, int) and not isinstance(name, bool):
        return str(name)
    raise TypeError(
        "fuse_modules: 'modules_to_fuse' must hold names (str) or subscripts (int), got "
        f"{name!r} ({type(name).__name__})"
    )


def _to_lists(modules_to_fuse: Any) -> list[list[str]]:
    if not isinstance(modules_to_fuse, (list, tuple)):
        raise TypeError(
            "fuse_modules: 'modules_to_fuse' must be a list of names or a list of such lists, got "
            f"{type(modules_to_fuse).__name__}"
        )
    nested = [isinstance(entry, (list, tuple)) for entry in modules_to_fuse]
    if any(nested) and not all(nested):
        raise TypeError(
            "fuse_modules: 'modules_to_fuse' must be a list of names or a list of such lists, got "
            "names and lists in one"
        )
    lists = modules_to_fuse if any(nested) else [modules_to_fuse]
    return [[_to_name(name) for name in names] for names in lists]


def _to_fuser_methods(mapping: Any) -> FuserMethods:
    where = "fuse_modules: 'additional_fuser_method_mapping'"
    if mapping is None:
        return {}
    if not isinstance(mapping, dict):
        raise TypeError(f"{where} must be a dict, got {type(mapping).__name__}")
    for types, method in mapping.items():
        if not isinstance(types, tuple) or not all(isinstance(t, type) for t in types):
            raise TypeError(f"{where} must map tuples of classes, got the key {types!r}")
        if not callable(method):
            raise TypeError(f"{where} must map to functions, got {method!r} for {types}")
    return mapping


def _custom_methods(config: Any) -> FuserMethods:
    key = "additional_fuser_method_mapping"
    if config is None:
        return {}
    if not isinstance(config, dict):
        raise TypeError(
            f"fuse_modules: 'fuse_custom_config_dict' must be a dict, got {type(config).__name__}"
        )
    unknown = [k for k in config if k != key]
    if unknown:
        raise ValueError(
            f"fuse_modules: 'fuse_custom_config_dict' must have the one key '{key}', got {unknown}"
        )
    return _to_fuser_methods(config.get(key))


@contextmanager
def _overriding(mode: qat_mode.QATMode, allow_inner_hooks: bool) -> Iterator[None]:
    token = _allow_inner_hooks.set(allow_inner_hooks)
    try:
        with qat_mode.override_qat_mode(mode):
            yield
    finally:
        _allow_inner_hooks.reset(token)


# --- Planning and building ----------------------------------------------------------------------


def _plan(
    tree: ModuleTree, lists: list[list[str]], methods: FuserMethods, match_patterns: bool = True
) -> tuple[list[_Group], list[str]]:
    sequences = [[tree.type_id(t) for t in types] for types in methods]
    try:
        groups, messages = _C.plan_fusion(
            tree.nodes,
            [list(group.names) for group in tree.groups],
            lists,
            str(qat_mode.get_qat_mode()),
            _allow_inner_hooks.get(),
            match_patterns,
            sequences,
        )
    except ValueError as error:
        raise FusionError(str(error)) from None
    return [_Group(*group) for group in groups], messages


def _mark(module: nn.Module, group: FusedGroup, position: int) -> nn.Module:
    module.__dict__[GROUP] = group
    module.__dict__[POSITION] = position
    return module


def _drop_hooks(module: nn.Module) -> None:
    """Empty the forward hooks of a batch norm that lives on inside a fused module."""
    for name in (
        "_forward_pre_hooks",
        "_forward_pre_hooks_with_kwargs",
        "_forward_hooks",
        "_forward_hooks_with_kwargs",
        "_forward_hooks_always_called",
    ):
        if module.__dict__[name]:
            module.__dict__[name] = OrderedDict()


def _fused_module(group: _Group, members: Sequence[nn.Module]) -> nn.Module:
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


def _build(group: _Group, members: Sequence[nn.Module], qconfig: Any) -> _Replacement:
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
    return _Replacement(modules, lambda: None if bn is None else _drop_hooks(bn))


def _takes_is_qat(method: Callable[..., Any]) -> bool:
    try:
        first = next(iter(inspect.signature(method).parameters), None)
    except (TypeError, ValueError):
        return False
    return first == "is_qat"


def _build_custom(
    group: _Group, members: Sequence[nn.Module], method: Callable[..., Any]
) -> _Replacement:
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

    return _Replacement(modules, finish)


def _mark_new(group: _Group, members: Sequence[nn.Module], modules: Sequence[nn.Module]) -> None:
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


def _replacements(
    tree: ModuleTree, groups: list[_Group], methods: FuserMethods
) -> list[_Replacement]:
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


def _replacements_by(
    fuser_func: Callable[..., Any], tree: ModuleTree, groups: list[_Group], methods: FuserMethods
) -> list[_Replacement]:
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
            group: _Group = group,
            members: list[nn.Module] = members,
            modules: Sequence[nn.Module] = modules,
        ) -> None:
            _mark_new(group, members, modules)

        result.append(_Replacement(list(modules), finish))
    return result


def _check_places(model: nn.Module, tree: ModuleTree, groups: list[_Group]) -> None:
    """Refuse a member that also stands outside its group, where it would change as well."""
    for group in groups:
        found = tree.other_place(group.members)
        if found is None:
            continue
        position, parent, name = found
        path = next(path for path, module in model.named_modules() if module is parent)
        raise FusionError(
            f"fuse_modules: '{group.names[position]}' is also '{path + '.' if path else ''}{name}',"
            " one module in two places, and the rest of its group is not there: give each place a "
            "module of its own, or leave the group out"
        )


def _apply(tree: ModuleTree, groups: list[_Group], replacements: list[_Replacement]) -> None:
    """Write every slot of every member; nothing here can fail."""
    for group, replacement in zip(groups, replacements, strict=True):
        for node, module in zip(group.members, replacement.modules, strict=True):
            for parent, name in tree.places_of(node, group.members[0]):
                parent._modules[name] = module
        replacement.finish()


# --- Entry points -------------------------------------------------------------------------------


def fuse_known_modules(
    mod_list: Sequence[nn.Module],
    additional_fuser_method_mapping: FuserMethods | None = None,
) -> list[nn.Module]:
    """Fuse a sequence of modules that are not looked up by name.

    Args:
        mod_list: the members, in order.
        additional_fuser_method_mapping: sequences of exact classes beyond the table, each with a
            function that makes the fused module from the members.

    Returns:
        As many modules: the fused one where the first stood (the FloatFunctional, if there is
        one), and what stands for the others. `mod_list` itself is not changed.

    Raises:
        FusionError, TypeError, NotImplementedError: as `fuse_modules`.
    """
    if not isinstance(mod_list, (list, tuple)) or not all(
        isinstance(module, nn.Module) for module in mod_list
    ):
        raise TypeError(
            f"fuse_known_modules: 'mod_list' must be a list of modules, got {mod_list!r}"
        )
    methods = _to_fuser_methods(additional_fuser_method_mapping)
    tree = ModuleTree.of_list(mod_list)
    groups, messages = _plan(tree, [[str(i) for i in range(len(mod_list))]], methods)
    replacements = _replacements(tree, groups, methods)
    for message in messages:
        warnings.warn(message, stacklevel=2)
    if not replacements:
        return list(mod_list)
    replacements[0].finish()
    return replacements[0].modules


def fuse_modules(
    model: nn.Module,
    modules_to_fuse: Sequence[Any],
    inplace: bool = False,
    fuser_func: Callable[..., list[nn.Module]] = fuse_known_modules,
    fuse_custom_config_dict: dict[str, Any] | None = None,
    *,
    mode: qat_mode.QATMode | str | None = None,
    allow_inner_hooks: bool = False,
) -> nn.Module:
    """Replace sequences of modules by fused ones (`horizon_plugin.fusion_patterns`).

    The fused module takes the slot of the first name, or of the FloatFunctional; the others become
    identities. User code stays as written. Names cannot see calls: a member that is also called
    outside its group is not noticed here.

    Args:
        model: the float model.
        modules_to_fuse: one list of names, or a list of such lists. Names are dotted paths, with
            the subscripts of Sequential and ModuleList (also as int; negative ones are refused).
        inplace: change `model` itself and return it; otherwise a deep copy, and `model` stays as
            it is.
        fuser_func: ``fuser_func(modules, additional_fuser_method_mapping)`` gives as many
            replacements.
        fuse_custom_config_dict: ``{"additional_fuser_method_mapping": {(types…): fn}}`` adds
            sequences of exact classes, which come before the table; ``fn(*modules)`` makes the
            fused module.
        mode: what becomes of batch norms, by default `get_qat_mode`. ``Auto``: members in eval
            mode are folded into fresh parameters, members in train mode keep a live batch norm,
            and one in eval mode among members in train mode stays frozen.
        allow_inner_hooks: drop hooks of inner members with a warning instead of refusing them.

    Returns:
        The fused model. A call that raises changes nothing.

    Raises:
        FusionError: (a ValueError) a name, mode, hook, qconfig or weight that cannot be fused.
        NotImplementedError: no pattern for these classes.
        TypeError: a subclass of a known class, or an argument of the wrong type.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"fuse_modules: 'model' must be a module, got {type(model).__name__}")
    if isinstance(model, torch.jit.ScriptModule):
        raise TypeError(
            "fuse_modules: 'model' must be an eager module, got a TorchScript module: fuse before "
            "torch.jit.script or torch.jit.trace"
        )
    if not callable(fuser_func):
        raise TypeError(f"fuse_modules: 'fuser_func' must be a function, got {fuser_func!r}")
    lists = _to_lists(modules_to_fuse)
    methods = _custom_methods(fuse_custom_config_dict)
    chosen = qat_mode.get_qat_mode()
    if mode is not None:
        chosen = qat_mode.check_qat_mode(mode, "fuse_modules")
    known = fuser_func is fuse_known_modules
    with _overriding(chosen, allow_inner_hooks):
        tree = ModuleTree.of_model(model)
        groups, messages = _plan(tree, lists, methods, match_patterns=known)
        _check_places(model, tree, groups)
        if not inplace:
            model = copy.deepcopy(model)
            tree = ModuleTree.of_model(model)
            groups, messages = _plan(tree, lists, methods, match_patterns=known)
        if known:
            replacements = _replacements(tree, groups, methods)
        else:
            replacements = _replacements_by(fuser_func, tree, groups, methods)
    for message in messages:
        warnings.warn(message, stacklevel=2)
    _apply(tree, groups, replacements)
    return model
