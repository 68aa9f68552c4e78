"""How a scale reaches its consumer: a tag on the tensor, and a mode that carries it.

A quantizing module sets the tag on its result; the next one reads it. Between them a
`TorchFunctionMode`, entered by the prepared root, hands the tag through functions that keep the
grid (relu, max pooling, views, …) and marks the results of all others as lost, so that the
consumer can say which op took the tensor off its grid.

A tag is a tuple of tensors and builtin types, stored as an attribute of the tensor:

* ``("grid", scale, zero_point, version, producer)``: floats on a grid;
* ``("codes", scale, zero_point, version, producer)``: uint8 codes of a converted model;
* ``("lost", op, producer)``: a float op ran on quantized data;
* ``("off", producer)``: the producer's fake-quant is off.

``scale`` and ``zero_point`` (as stored, see docs/design.md) are those that quantized this very
tensor, never the quantizer's live buffers.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

TAG = "_horizon_grid"
Tag = tuple[Any, ...]

_active = threading.local()


def get_tag(x: Any) -> Tag | None:
    """The tag of `x`, or None."""
    return getattr(x, TAG, None)


def set_tag(x: Tensor, tag: Tag) -> Tensor:
    """Tag `x` and return it."""
    setattr(x, TAG, tag)
    return x


def is_quantized(tag: Tag | None) -> bool:
    """Whether the tag says that the tensor lies on a grid."""
    return tag is not None and (tag[0] == "grid" or tag[0] == "codes")


def version_of(x: Tensor) -> int:
    """The in-place counter of `x`; 0 where there is none (inference tensors, compilation)."""
    if torch.compiler.is_compiling() or x.is_inference():
        return 0
    return x._version


REMEDIES = {
    **{
        op: f"wrap the {symbol} in a FloatFunctional that is an attribute of the model"
        for symbol, ops in (("+", "add radd"), ("+=", "iadd"), ("-", "sub rsub"), ("*", "mul rmul"))
        for op in ops.split()
    },
    "cat": "use FloatFunctional.cat",
    "mean": "use FloatFunctional.mean or nn.AdaptiveAvgPool2d",
    "matmul": "use FloatFunctional.matmul",
    "relu6": "use the module nn.ReLU6",
    "hardtanh": "use the module nn.ReLU6",
    "adaptive_avg_pool2d": "use the module nn.AdaptiveAvgPool2d",
    "avg_pool2d": "use the module nn.AvgPool2d",
    "interpolate": "use the module nn.Upsample",
    "linear": "give the layer a qconfig, or put a DeQuantStub before it",
    "conv2d": "give the layer a qconfig, or put a DeQuantStub before it",
}


def remedy_for(op: str) -> str:
    """What the user can do about a float op on quantized data."""
    return REMEDIES.get(op, "put a DeQuantStub before it (and a QuantStub after it)")


def _name_of(func: Callable[..., Any]) -> str:
    name = getattr(func, "__name__", str(func))
    if name == "__get__":
        name = getattr(getattr(func, "__self__", None), "__name__", name)
    return name.strip("_").removesuffix("2d_with_indices")


# --- Rules: how each grid-keeping function treats its input's tag -----------------------------

Rule = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any], Tag], Any]
_RULES: dict[Any, Rule] = {}


def _retag(out: Any, tag: Tag) -> Any:
    if isinstance(out, Tensor):
        setattr(out, TAG, (*tag[:3], version_of(out), tag[4]))
    elif isinstance(out, (tuple, list)):
        for item in out:
            _retag(item, tag)
    return out


def _keep(func: Callable[..., Any], args: tuple, kwargs: dict, tag: Tag) -> Any:
    return _retag(func(*args, **kwargs), tag)


def _keep_first(func: Callable[..., Any], args: tuple, kwargs: dict, tag: Tag) -> Any:
    out = func(*args, **kwargs)
    _retag(out[0], tag)
    return out


def _needs_trace(what: str) -> None:
    root = getattr(_active, "root", None)
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
        return _other(func, args, kwargs)
    # What survives is (q - z) * s / (1 - p): on the grid whose scale is that much larger.
    return _retag(func(*args, **kwargs), (tag[0], tag[1] / (1.0 - p), *tag[2:]))


def _interpolate(func: Callable[..., Any], args: tuple, kwargs: dict, tag: Tag) -> Any:
    names = ("input", "size", "scale_factor", "mode")
    given = dict(zip(names, args, strict=False)) | kwargs
    if given.get("mode", "nearest") in ("nearest", "nearest-exact"):
        return _keep(func, args, kwargs, tag)
    return _other(func, args, kwargs)


def _pad(func: Callable[..., Any], args: tuple, kwargs: dict, tag: Tag) -> Any:
    given = dict(zip(("input", "pad", "mode", "value"), args, strict=False)) | kwargs
    mode, value = given.get("mode", "constant"), given.get("value")
    if mode != "constant" or (tag[0] == "grid" and value in (None, 0)):
        return _keep(func, args, kwargs, tag)
    if value not in (None, 0):
        return _other(func, args, kwargs)
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
        return _other(func, args, kwargs)
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
    return _lose(func, out, args, kwargs)


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


def _cat(func: Callable[..., Any], args: tuple, kwargs: dict) -> Any:
    tensors = args[0] if args else kwargs.get("tensors", ())
    tags = [get_tag(t) for t in tensors]
    if tags and _same_grid(tags):
        return _retag(func(*args, **kwargs), tags[0])  # type: ignore[arg-type]
    return _other(func, args, kwargs)


def _fill_rules() -> None:
    t = torch.Tensor
    keep = """alias broadcast_to chunk clone contiguous detach diagonal expand expand_as flatten
        flip index_select movedim moveaxis narrow permute ravel repeat reshape reshape_as roll
        select split split_with_sizes squeeze swapaxes swapdims t take_along_dim tile transpose
        unbind unflatten unfold unsqueeze view view_as rot90 tensor_split hsplit vsplit gather
        repeat_interleave requires_grad_ cpu cuda squeeze_ unsqueeze_ transpose_ t_ detach_
        swapaxes_ swapdims_ adjoint __getitem__ channel_shuffle pixel_shuffle pixel_unshuffle
        native_channel_shuffle""".split()
    for name in keep:
        for place in (t, torch, F):
            func = getattr(place, name, None)
            if func is not None:
                _RULES[func] = _keep
    del _RULES[F.unfold]  # im2col, which has no form for codes
    # Under tracing these return tensors.
    for name in ("size", "stride", "dim", "numel", "nelement", "storage_offset"):
        _RULES[getattr(t, name)] = _metadata
    _RULES[t.shape.__get__] = _metadata  # type: ignore[attr-defined]
    for getter in (t.T, t.mT, t.H, t.mH, t.data):
        _RULES[getter.__get__] = _keep  # type: ignore[attr-defined]
    for name in ("max_pool2d", "_max_pool2d"):
        _RULES[getattr(F, name)] = _max_pool
    _RULES[torch.max_pool2d] = _max_pool
    for func in (torch.ops.aten.alias, torch.ops.aten.alias.default):
        _RULES[func] = _keep
    _RULES[F.max_pool2d_with_indices] = _keep_first
    for func in (F.relu, F.relu_, torch.relu, torch.relu_, t.relu, t.relu_):
        _RULES[func] = _relu
    for func in (F.dropout, F.dropout2d):
        _RULES[func] = _dropout
    _RULES[F.interpolate] = _interpolate
    _RULES[F.pad] = _pad
    for name in ("adaptive_max_pool2d", "_adaptive_max_pool2d"):
        _RULES[getattr(F, name)] = _adaptive_max_pool
    _RULES[t.to] = _to
    _RULES[t.__setitem__] = _setitem


_fill_rules()
_CATS = {f for f in (torch.cat, torch.concat, torch.concatenate) if f is not None}


def _is_in_place(func: Callable[..., Any]) -> bool:
    name = getattr(func, "__name__", "")
    return name.endswith("_") and not name.endswith("__")


def _tensors_of(args: tuple, kwargs: dict) -> Iterator[Any]:
    for value in (*args, *kwargs.values()):
        if isinstance(value, (tuple, list)):
            yield from value
        else:
            yield value


def _lose(func: Callable[..., Any], out: Any, args: tuple, kwargs: dict) -> Any:
    """Mark the result of a function that leaves the grid; refuse it on codes."""
    if not isinstance(out, (Tensor, tuple, list)):
        return out
    origin = None
    for value in _tensors_of(args, kwargs):
        tag = get_tag(value)
        if tag is None or tag[0] == "off":
            continue
        if tag[0] == "codes":
            op = _name_of(func)
            raise RuntimeError(
                f"'{op}' ran on the quantized result of '{tag[4]}' (uint8 codes): {remedy_for(op)}"
            )
        if origin is None or tag[0] == "lost":
            origin = tag
    if origin is None:
        return out
    lost = origin if origin[0] == "lost" else ("lost", _name_of(func), origin[4])
    for item in out if isinstance(out, (tuple, list)) else (out,):
        if isinstance(item, Tensor):
            setattr(item, TAG, lost)
    return out


def _other(func: Callable[..., Any], args: tuple, kwargs: dict) -> Any:
    return _lose(func, func(*args, **kwargs), args, kwargs)


class CarryMode(TorchFunctionMode):
    """Carries tags through grid-keeping functions."""

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        """Run `func` and move its input's tag to its result."""
        kwargs = kwargs or {}
        if func in _CATS:
            return _cat(func, args, kwargs)
        rule = _RULES.get(func)
        if rule is None:
            return _other(func, args, kwargs)
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
        if not getattr(_active, "on", False):
            _active.on = True
            _active.root = self._root
            self._mode = CarryMode()
            self._mode.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        if self._mode is not None:
            self._mode.__exit__(*exc)
            self._mode = None
            _active.on = False
            _active.root = None

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


@cache
def rooted_class(base: type[nn.Module]) -> type[nn.Module]:
    """The subclass of `base` whose call carries tags. Its forward is untouched."""

    def __call__(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        if getattr(_active, "on", False):
            return base.__call__(self, *args, **kwargs)
        with carry(self):
            result = base.__call__(self, *args, **kwargs)
        if not torch.compiler.is_compiling():
            self.__dict__["_horizon_output_of"] = _quantized_producer(result)
        return result

    def __reduce_ex__(self, protocol):  # type: ignore[no-untyped-def]
        return _rebuild, (base,), self.__getstate__()

    def __prepare_scriptable__(self):  # type: ignore[no-untyped-def]
        what = self.__dict__.get("_horizon_needs_trace")
        if what is not None:
            raise RuntimeError(
                f"torch.jit.script: a functional '{what}' runs on quantized codes in this model, "
                "where a script cannot see the zero point: use torch.jit.trace, or the module "
                "form of the op"
            )
        return self

    return type(
        base.__name__,
        (base,),
        {
            "__module__": base.__module__,
            "__qualname__": base.__qualname__,
            "__doc__": base.__doc__,
            "__call__": __call__,
            "__reduce_ex__": __reduce_ex__,
            "__prepare_scriptable__": __prepare_scriptable__,
            "_horizon_rooted": base,
        },
    )


def make_root(model: nn.Module) -> None:
    """Let `model` carry tags when it is called; idempotent."""
    if "_horizon_rooted" not in type(model).__dict__:
        model.__class__ = rooted_class(type(model))  # type: ignore[arg-type]


def is_root(model: nn.Module) -> bool:
    """Whether `make_root` was called on `model`."""
    return "_horizon_rooted" in type(model).__dict__
