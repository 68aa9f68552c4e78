"""Replaces sequences of modules by fused ones."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from horizon_plugin import qat_mode
from horizon_plugin._traced import copy_model
from horizon_plugin.nn._pending import FusionError
from horizon_plugin.quantization import _replacements
from horizon_plugin.quantization._module_tree import ModuleTree, inner_of, to_text
from horizon_plugin.quantization._preflight import Preflight
from horizon_plugin.quantization._replacements import FuserMethods
from horizon_plugin.quantization._tied import fold_warnings
from horizon_plugin.quantization._trial import Trial

__all__ = ["FusionError", "fuse_known_modules", "fuse_modules"]

# --- Arguments ----------------------------------------------------------------------------------


def _to_name(name: Any) -> str:
    if isinstance(name, str):
        return to_text(name)
    if isinstance(name, int) and not isinstance(name, bool):
        return str(name) if name.bit_length() <= 64 else hex(name)  # str refuses huge ones
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


def _to_fuser_methods(call: str, mapping: Any) -> FuserMethods:
    where = f"{call}: 'additional_fuser_method_mapping'"
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


def custom_methods(call: str, config: Any) -> FuserMethods:
    """The fuser functions of a `fuse_custom_config_dict`."""
    key = "additional_fuser_method_mapping"
    if config is None:
        return {}
    if not isinstance(config, dict):
        raise TypeError(
            f"{call}: 'fuse_custom_config_dict' must be a dict, got {type(config).__name__}"
        )
    unknown = [k for k in config if k != key]
    if unknown:
        raise ValueError(
            f"{call}: 'fuse_custom_config_dict' must have the one key '{key}', got {unknown}"
        )
    return _to_fuser_methods(call, config.get(key))


def check_model(call: str, model: Any) -> None:
    """Refuse what is no eager module."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"{call}: 'model' must be a module, got {type(model).__name__}")
    if isinstance(model, torch.jit.ScriptModule):
        raise TypeError(
            f"{call}: 'model' must be an eager module, got a TorchScript module: fuse before "
            "torch.jit.script or torch.jit.trace"
        )


def refuse_wrapper(call: str, model: nn.Module) -> None:
    """Refuse a DataParallel or compiled model, whose inner module is to be passed."""
    inner = inner_of(type(model))
    if inner:
        raise FusionError(
            f"{call}: the model is wrapped in {type(model).__name__}: pass the inner module, "
            f"model.{inner}"
        )


def copied(call: str, model: nn.Module) -> nn.Module:
    """A deep copy, or an error that says how to do without."""
    try:
        return copy_model(model)
    except Exception as error:
        raise FusionError(
            f"{call}: 'model' must be one that copy.deepcopy can copy, got {type(error).__name__}: "
            f"{error}. Pass inplace=True to change the model itself"
        ) from error


def check_mode(call: str, mode: Any) -> qat_mode.QATMode:
    """The mode to use: `mode`, or the global one if it is None."""
    return qat_mode.get_qat_mode() if mode is None else qat_mode.check_qat_mode(mode, call)


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
    methods = _to_fuser_methods("fuse_modules", additional_fuser_method_mapping)
    tree = ModuleTree.of_list(mod_list)
    groups, messages = _replacements.plan(tree, [[str(i) for i in range(len(mod_list))]], methods)
    replacements = _replacements.build_all(tree, groups, methods)
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
    example_inputs: tuple[Any, ...] | list[Any] | dict[str, Any] | None = None,
) -> nn.Module:
    """Replace sequences of modules by fused ones (`horizon_plugin.fusion_patterns`).

    The fused module takes the slot of the first name, or of the FloatFunctional; the others become
    identities. User code stays as written. Names cannot see calls: a member that is also called
    outside its group is noticed only with `example_inputs`.

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
        example_inputs: a tuple of the model's arguments (or a dict of keyword arguments). The
            model is run on them before and after, without a trace (statistics, random state,
            gradients and inputs stay as they are): members must be called one after another and
            nowhere else, values between them used once, and the output must stay the same.

    Returns:
        The fused model. A call that raises changes nothing.

    Raises:
        FusionError: (a ValueError) a name, mode, hook, qconfig or weight that cannot be fused, or
            what `example_inputs` brought out.
        NotImplementedError: no pattern for these classes.
        TypeError: a subclass of a known class, or an argument of the wrong type.
    """
    check_model("fuse_modules", model)
    if not callable(fuser_func):
        raise TypeError(f"fuse_modules: 'fuser_func' must be a function, got {fuser_func!r}")
    lists = _to_lists(modules_to_fuse)
    methods = custom_methods("fuse_modules", fuse_custom_config_dict)
    preflight = None
    if example_inputs is not None:
        preflight = Preflight("fuse_modules", example_inputs)
    known = fuser_func is fuse_known_modules
    with _replacements.overriding(check_mode("fuse_modules", mode), allow_inner_hooks):
        tree = ModuleTree.of_model(model)
        groups, messages = _replacements.plan(tree, lists, methods, match_patterns=known)
        _replacements.check_places(model, tree, groups)
        trial = None
        if preflight is not None:
            members = {node for group in groups for node in group.members}
            record, output = preflight.record(model, tree, members)
            messages += _replacements.check_calls(tree, record, groups)
            trial = Trial(preflight, output)
        if not inplace:
            model = copied("fuse_modules", model)
            tree = ModuleTree.of_model(model)
            groups, _ = _replacements.plan(tree, lists, methods, match_patterns=known)

        def build(chosen: list[_replacements.Group]) -> list[_replacements.Replacement]:
            if known:
                return _replacements.build_all(tree, chosen, methods)
            return _replacements.build_by(fuser_func, tree, chosen, methods)

        if trial is not None:
            trial.refuse_harmful(model, tree, groups, build)
        replacements = build(groups)
        for message in [*messages, *fold_warnings("fuse_modules", tree, groups)]:
            warnings.warn(message, stacklevel=2)
        _replacements.apply(tree, groups, replacements)
    return model
