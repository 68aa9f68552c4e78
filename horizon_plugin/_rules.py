"""How functions between quantized modules treat the tag of their input."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from horizon_plugin import _C
from horizon_plugin._tags import (
    TAG,
    Tag,
    active,
    get_tag,
    is_quantized,
    name_of,
    own_alias,
    remedy_for,
    version_of,
)

Rule = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any], Tag], Any]
RULES: dict[Any, Rule] = {}


def _retag(out: Any, tag: Tag) -> Any:
    if isinstance(out, Tensor):
        setattr(out, TAG, (*tag[:3], version_of(out), tag[4]))
    elif isinstance(out, (tuple, list)):
        if torch.compiler.is_dynamo_compiling():
            out = tuple(own_alias(item) if isinstance(item, Tensor) else item for item in out)
        for item in out:
            _retag(item, tag)
    return out


def _keep(func: Callable[..., Any], args: tuple, kwargs: dict, tag: Tag) -> Any:
    return _retag(func(*args, **kwargs), tag)


def _keep_first(func: Callable[..., Any], args: tuple, kwargs: dict, tag: Tag) -> Any:
    first, *others = func(*args, **kwargs)
    return tuple(_retag([first], tag)) + tuple(others)


def _needs_trace(what: str) -> None:
    root = getattr(active, "root", None)
    if root is not None and not torch.compiler.is_compiling():
        root.__dict__["_horizon_needs_trace"] = what


def _relu(func: Callable[..., Any], args: tuple, kwargs: dict, tag: Tag) -> Any:
    if tag[0] == "grid":
        return _keep(func, args, kwargs, tag)
    x = args[0] if args else kwargs["input"]
    _needs_trace("relu")
    out = torch.maximum(x, tag[2].to(torch.uint8))
    in_place = kwargs.get("inplace", len(args) > 1 and args[1]) or _is_in_place(func)
    return _retag(x.copy_(out) if in_place else out, tag)


def _dropout(func: Callable[..., Any], args: tuple, kwargs: dict, tag: Tag) -> Any:
    names = ("input", "p", "training", "inplace")
    given = dict(zip(names, args, strict=False)) | kwargs
    p, training = given.get("p", 0.5), given.get("training", True)
    if not training or p == 0.0:
        return _keep(func, args, kwargs, tag)
    if p == 1.0 or tag[0] == "codes":
        return other(func, args, kwargs)
    # What survives is (q - z) * s / (1 - p): on the grid whose scale is that much larger.
    return _retag(func(*args, **kwargs), (tag[0], tag[1] / (1.0 - p), *tag[2:]))


def _interpolate(func: Callable[..., Any], args: tuple, kwargs: dict, tag: Tag) -> Any:
    names = ("input", "size", "scale_factor", "mode")
    given = dict(zip(names, args, strict=False)) | kwargs
    if given.get("mode", "nearest") in ("nearest", "nearest-exact"):
        return _keep(func, args, kwargs, tag)
    return other(func, args, kwargs)


def _pad(func: Callable[..., Any], args: tuple, kwargs: dict, tag: Tag) -> Any:
    given = dict(zip(("input", "pad", "mode", "value"), args, strict=False)) | kwargs
    mode, value = given.get("mode", "constant"), given.get("value")
    if mode != "constant" or (tag[0] == "grid" and value in (None, 0)):
        return _keep(func, args, kwargs, tag)
    if value not in (None, 0):
        return other(func, args, kwargs)
    _needs_trace("pad")
    # Centred codes are padded with 0: reading the zero point as a number would break tracing.
    zero_point = tag[2].to(torch.int16)
    padded = F.pad(given["input"].to(torch.int16) - zero_point, given["pad"])
    return _retag((padded + zero_point).to(torch.uint8), tag)


def _max_pool(func: Callable[..., Any], args: tuple, kwargs: dict, tag: Tag) -> Any:
    if tag[0] == "grid":
        return _keep(func, args, kwargs, tag)
    names = ("input", "kernel_size", "stride", "padding", "dilation", "ceil_mode")
    given = dict(zip(names, args, strict=False)) | kwargs
    if given.pop("return_indices", False):
        return other(func, args, kwargs)
    if not torch.compiler.is_compiling() and not given["input"].is_contiguous():
        _needs_trace("max_pool2d")  # torch's own refuses larger channels_last images of uint8
    return _retag(max_pool_codes(**{n: given[n] for n in names if n in given}), tag)


def max_pool_codes(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """`F.max_pool2d` of uint8 codes, in either memory format."""

    def pair(value: Any) -> list[int]:
        return [value] if isinstance(value, int) else list(value)

    return torch.ops.horizon.quantized_max_pool2d(
        input,
        pair(kernel_size),
        [] if stride is None else pair(stride),
        pair(padding),
        pair(dilation),
        ceil_mode,
    )


def _adaptive_max_pool(func: Callable[..., Any], args: tuple, kwargs: dict, tag: Tag) -> Any:
    if tag[0] == "grid":
        return _keep(func, args, kwargs, tag)
    given = dict(zip(("input", "output_size"), args, strict=False)) | kwargs
    x = given.pop("input")
    _needs_trace("adaptive_max_pool2d")
    return _retag(func(x.to(torch.float32), **given).to(torch.uint8), tag)


def _to(func: Callable[..., Any], args: tuple, kwargs: dict, tag: Tag) -> Any:
    out = func(*args, **kwargs)
    if out.dtype == args[0].dtype:
        return _retag(out, tag)
    return lose(func, out, args, kwargs)


def _metadata(func: Callable[..., Any], args: tuple, kwargs: dict, tag: Tag) -> Any:
    return func(*args, **kwargs)


def _setitem(func: Callable[..., Any], args: tuple, kwargs: dict, tag: Tag) -> Any:
    out = func(*args, **kwargs)
    setattr(args[0], TAG, ("lost", "setitem", tag[4]))
    return out


def _same_grid(tags: list[Tag | None]) -> bool:
    first = tags[0]
    if first is None or not is_quantized(first):
        return False
    for tag in tags[1:]:
        if tag is None or tag[0] != first[0]:
            return False
        if tag[1] is first[1] and tag[2] is first[2]:
            continue
        if torch.compiler.is_compiling():
            return False
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", torch.jit.TracerWarning)
            if not (torch.equal(tag[1], first[1]) and torch.equal(tag[2], first[2])):
                return False
    return True


def cat(func: Callable[..., Any], args: tuple, kwargs: dict) -> Any:
    """Concatenate: operands of one grid keep it."""
    tensors = args[0] if args else kwargs.get("tensors", ())
    tags = [get_tag(t) for t in tensors]
    if tags and _same_grid(tags):
        return _retag(func(*args, **kwargs), tags[0])  # type: ignore[arg-type]
    return other(func, args, kwargs)


def _fill_rules() -> None:
    t = torch.Tensor
    moving = _C.moves_elements()  # the table that the graph passes have, too
    keep = [*moving, *(f"{name}_" for name in moving), "requires_grad_", "cpu", "cuda"]
    keep.append("__getitem__")
    for name in keep:
        for place in (t, torch, F):
            func = getattr(place, name, None)
            if func is not None:
                RULES[func] = _keep
    del RULES[F.unfold]  # im2col, which has no form for codes
    # Under tracing these return tensors.
    for name in ("size", "stride", "dim", "numel", "nelement", "storage_offset"):
        RULES[getattr(t, name)] = _metadata
    RULES[t.shape.__get__] = _metadata  # type: ignore[attr-defined]
    for getter in (t.T, t.mT, t.H, t.mH, t.data):
        RULES[getter.__get__] = _keep  # type: ignore[attr-defined]
    for name in ("max_pool2d", "_max_pool2d"):
        RULES[getattr(F, name)] = _max_pool
    RULES[torch.max_pool2d] = _max_pool
    for func in (torch.ops.aten.alias, torch.ops.aten.alias.default):
        RULES[func] = _keep
    RULES[F.max_pool2d_with_indices] = _keep_first
    for func in (F.relu, F.relu_, torch.relu, torch.relu_, t.relu, t.relu_):
        RULES[func] = _relu
    for func in (F.dropout, F.dropout2d):
        RULES[func] = _dropout
    RULES[F.interpolate] = _interpolate
    RULES[F.pad] = _pad
    for name in ("adaptive_max_pool2d", "_adaptive_max_pool2d"):
        RULES[getattr(F, name)] = _adaptive_max_pool
    RULES[t.to] = _to
    RULES[t.__setitem__] = _setitem


_fill_rules()
CATS = {f for f in (torch.cat, torch.concat, torch.concatenate) if f is not None}


_IN_PLACE = {
    getattr(torch.Tensor, name)
    for name in dir(torch.Tensor)
    if name.endswith("_") and not name.endswith("__")
}


def _is_in_place(func: Callable[..., Any]) -> bool:
    name = getattr(func, "__name__", "")
    return name.endswith("_") and not name.endswith("__")


def _tensors_of(args: tuple, kwargs: dict) -> Iterator[Any]:
    for value in (*args, *kwargs.values()):
        if isinstance(value, (tuple, list)):
            yield from value
        else:
            yield value


def _refuse_codes(func: Callable[..., Any], args: tuple, kwargs: dict) -> None:
    for value in _tensors_of(args, kwargs):
        tag = get_tag(value)
        if tag is not None and tag[0] == "codes":
            op = name_of(func)
            raise RuntimeError(
                f"'{op}' ran on the quantized result of '{tag[4]}' (uint8 codes): {remedy_for(op)}"
            )


def lose(func: Callable[..., Any], out: Any, args: tuple, kwargs: dict) -> Any:
    """Mark the result of a function that leaves the grid; refuse it on codes."""
    if not isinstance(out, (Tensor, tuple, list)):
        return out
    _refuse_codes(func, args, kwargs)
    origin = None
    for value in _tensors_of(args, kwargs):
        tag = get_tag(value)
        if tag is None or tag[0] == "off":
            continue
        if origin is None or tag[0] == "lost":
            origin = tag
    if origin is None:
        return out
    root = getattr(active, "root", None)
    if root is not None and origin[0] == "grid" and not torch.compiler.is_compiling():
        root.__dict__.setdefault("_horizon_lost", {})[name_of(func), origin[4]] = None
    compiling = torch.compiler.is_dynamo_compiling()
    if compiling and isinstance(out, (tuple, list)):
        return out  # no member of an op's tuple takes attributes there
    name = "a float op" if compiling else name_of(func)
    lost = origin if origin[0] == "lost" else ("lost", name, origin[4])
    if compiling and func in _IN_PLACE:
        setattr(args[0], TAG, lost)  # another object than the result there
    for item in out if isinstance(out, (tuple, list)) else (out,):
        if isinstance(item, Tensor):
            setattr(item, TAG, lost)
    return out


def other(func: Callable[..., Any], args: tuple, kwargs: dict) -> Any:
    """Run a function that keeps no grid."""
    try:
        out = func(*args, **kwargs)
    except (RuntimeError, TypeError, NotImplementedError):
        _refuse_codes(func, args, kwargs)  # says more than what torch has against uint8
        raise
    return lose(func, out, args, kwargs)
