"""How a scale reaches its consumer: a tag on the tensor, and a mode that carries it.

A quantizing module sets the tag on its result; the next one reads it. Between them a
`TorchFunctionMode`, entered by the prepared root, hands the tag through functions that keep the
grid (relu, max pooling, views, …) and marks the results of all others as lost, so that the
consumer can say which op took the tensor off its grid.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import torch
import torch.fx
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from horizon_plugin._rules import CATS, RULES, cat, other
from horizon_plugin._tags import (
    TAG,
    Tag,
    active,
    get_tag,
    is_quantized,
    remedy_for,
    set_tag,
    version_of,
)
from horizon_plugin._traced import copy_traced

__all__ = [
    "CarryMode",
    "Tag",
    "carry",
    "get_tag",
    "is_quantized",
    "is_root",
    "make_root",
    "remedy_for",
    "rooted_class",
    "set_tag",
    "version_of",
]


class CarryMode(TorchFunctionMode):
    """Carries tags through grid-keeping functions."""

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        """Run `func` and move its input's tag to its result."""
        kwargs = kwargs or {}
        if func in CATS:
            return cat(func, args, kwargs)
        rule = RULES.get(func)
        if rule is None:
            return other(func, args, kwargs)
        tag = getattr(args[0] if args else kwargs.get("input"), TAG, None)
        if tag is None:
            return func(*args, **kwargs)
        if tag[0] == "grid" or tag[0] == "codes":
            return rule(func, args, kwargs, tag)
        out = func(*args, **kwargs)
        for item in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(item, Tensor):
                setattr(item, TAG, tag)
        return out


class carry(AbstractContextManager):
    """Context manager under which modules called directly still pass scales to each other.

    The prepared root enters it by itself. It is needed for a direct call of a submodule, and for
    activation checkpointing, whose recomputation runs outside the root's call::

        with horizon.quantization.carry():
            y = model.backbone(x)
        torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False, context_fn=carry)

    Re-entrant, per thread.
    """

    def __init__(self, root: nn.Module | None = None) -> None:
        self._root = root
        self._mode: CarryMode | None = None

    def __enter__(self) -> carry:
        if not getattr(active, "on", False):
            active.on = True
            active.root = self._root
            self._mode = CarryMode()
            self._mode.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        if self._mode is not None:
            self._mode.__exit__(*exc)
            self._mode = None
            active.on = False
            active.root = None

    def __iter__(self) -> Iterator[carry]:
        """Two contexts, as `torch.utils.checkpoint` wants from a `context_fn`."""
        return iter((carry(), carry()))


# --- The root: a generated subclass that enters the mode in __call__ --------------------------


def _rebuild(base: type) -> nn.Module:
    cls = rooted_class(base)
    return cls.__new__(cls)


def _quantized_producer(result: Any) -> str | None:
    """The module whose quantized result leaves the model; None if none does."""
    if isinstance(result, Tensor):
        tag = get_tag(result)
        return tag[4] if is_quantized(tag) else None  # type: ignore[index]
    values = result.values() if isinstance(result, dict) else result
    if not isinstance(result, (dict, tuple, list)):
        return None
    return next((name for name in map(_quantized_producer, values) if name is not None), None)


def _check_state(model: nn.Module, state_dict: Any, prefix: str, strict: bool) -> None:
    # Imported late: the checks know the layers, which know this module.
    from horizon_plugin.quantization._state_check import check_state

    check_state(model, state_dict, prefix, strict)


@cache
def rooted_class(base: type[nn.Module]) -> type[nn.Module]:
    """The subclass of `base` whose call carries tags, and which checks what is loaded into it.

    Its forward is untouched.
    """

    def __call__(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        if getattr(active, "on", False):
            return base.__call__(self, *args, **kwargs)
        if not torch.compiler.is_compiling():
            self.__dict__["_horizon_lost"] = {}
        with carry(self):
            result = base.__call__(self, *args, **kwargs)
        if not torch.compiler.is_compiling():
            self.__dict__["_horizon_output_of"] = _quantized_producer(result)
        return result

    def __reduce_ex__(self, protocol):  # type: ignore[no-untyped-def]
        return _rebuild, (base,), self.__getstate__()

    def load_state_dict(self, state_dict, strict=True, assign=False):  # type: ignore[no-untyped-def]
        """As `nn.Module.load_state_dict`, but what does not fit is refused before it is written."""
        _check_state(self, state_dict, "", strict)
        return base.load_state_dict(self, state_dict, strict, assign)

    def _load_from_state_dict(self, state_dict, prefix, *args):  # type: ignore[no-untyped-def]
        if prefix:  # a part of a larger model: nobody has looked yet
            _check_state(self, state_dict, prefix, False)
        base._load_from_state_dict(self, state_dict, prefix, *args)

    def __prepare_scriptable__(self):  # type: ignore[no-untyped-def]
        what = self.__dict__.get("_horizon_needs_trace")
        if what is not None:
            raise RuntimeError(
                f"torch.jit.script: a functional '{what}' runs on quantized codes in this model, "
                "where a script cannot see the zero point: use torch.jit.trace"
            )
        return self

    body = {
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
        "__call__": __call__,
        "__reduce_ex__": __reduce_ex__,
        "load_state_dict": load_state_dict,
        "_load_from_state_dict": _load_from_state_dict,
        "__prepare_scriptable__": __prepare_scriptable__,
        "_horizon_rooted": base,
    }
    if issubclass(base, torch.fx.GraphModule):
        body.update(
            __deepcopy__=_copy_traced,
            __reduce_ex__=_reduce_traced,
            _wrapped_call=base._wrapped_call,  # type: ignore[attr-defined]
            recompile=_recompiling(base, __call__),
        )
    return type(base.__name__, (base,), body)


# A GraphModule has a class of its own for each object, and copies and pickles by its code.


def _recompiling(base: type[torch.fx.GraphModule], call: Any) -> Any:
    def recompile(self: Any) -> Any:
        code = base.recompile(self)
        type(self).__call__ = call  # which it has replaced
        return code

    return recompile


def _rebuild_traced(rebuild: Any, arguments: tuple[Any, ...]) -> nn.Module:
    model = rebuild(*arguments)
    make_root(model)
    return model


def _copy_traced(self: Any, memo: dict[int, Any]) -> nn.Module:
    copied = copy_traced(self, self._horizon_rooted.__deepcopy__, memo)
    make_root(copied)
    return copied


def _reduce_traced(self: Any, protocol: Any) -> tuple[Any, ...]:
    return _rebuild_traced, self._horizon_rooted.__reduce__(self)


def make_root(model: nn.Module) -> None:
    """Let `model` carry tags when it is called; idempotent."""
    if "_horizon_rooted" not in type(model).__dict__:
        model.__class__ = rooted_class(type(model))  # type: ignore[arg-type]


def is_root(model: nn.Module) -> bool:
    """Whether `make_root` was called on `model`."""
    return "_horizon_rooted" in type(model).__dict__
