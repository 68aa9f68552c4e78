"""Tags: which grid a tensor lies on, as an attribute of the tensor.

A tag is a tuple of tensors and builtin types, stored as an attribute of the tensor:

* ``("grid", scale, zero_point, version, producer)``: floats on a grid;
* ``("codes", scale, zero_point, version, producer)``: uint8 codes of a converted model;
* ``("lost", op, producer)``: a float op ran on quantized data;
* ``("off", producer)``: the producer's fake-quant is off;
* ``("island", scale, zero_point, 0, producer, state)``: the float result of a float island, and
  what quantizes it where a quantized layer takes it: scale and zero point (converted), or the
  quantizer's state as `quantize_activation` takes it (prepared).

``scale`` and ``zero_point`` (as stored, see docs/design.md) are those that quantized this very
tensor, never the quantizer's live buffers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

TAG = "_horizon_grid"
Tag = tuple[Any, ...]

#: Whether this thread is inside a prepared root's call (`on`), and which (`root`).
active = threading.local()


def get_tag(x: Any) -> Tag | None:
    """The tag of `x`, or None."""
    return getattr(x, TAG, None)


def set_tag(x: Tensor, tag: Tag) -> Tensor:
    """Tag `x` and return it; where torch.compile traces, another alias of it."""
    if torch.compiler.is_dynamo_compiling():
        x = own_alias(x)
    setattr(x, TAG, tag)
    return x


def own_alias(x: Tensor) -> Tensor:
    """A tensor that takes attributes under torch.compile, as no member of an op's tuple does."""
    return torch.ops.aten.alias(x)


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
    "hardtanh": "use the module nn.Hardtanh",
    "hardswish": "use the module nn.Hardswish",
    "hardsigmoid": "use the module nn.Hardsigmoid",
    "sigmoid": "use the module nn.Sigmoid",
    "tanh": "use the module nn.Tanh",
    "silu": "use the module nn.SiLU",
    "mish": "use the module nn.Mish",
    "gelu": "use the module nn.GELU",
    "leaky_relu": "use the module nn.LeakyReLU",
    "elu": "use the module nn.ELU",
    "softplus": "use the module nn.Softplus",
    "adaptive_avg_pool2d": "use the module nn.AdaptiveAvgPool2d",
    "avg_pool2d": "use the module nn.AvgPool2d",
    "interpolate": "use the module nn.Upsample",
    "linear": "give the layer a qconfig, or put a DeQuantStub before it",
    "conv2d": "give the layer a qconfig, or put a DeQuantStub before it",
}


def remedy_for(op: str) -> str:
    """What the user can do about a float op on quantized data."""
    return REMEDIES.get(op, "put a DeQuantStub before it (and a QuantStub after it)")


def name_of(func: Callable[..., Any]) -> str:
    """The op as users write it: "add" for ``__add__``, "shape" for its getter."""
    name = getattr(func, "__name__", str(func))
    if name == "__get__":
        name = getattr(getattr(func, "__self__", None), "__name__", name)
    return name.strip("_").removesuffix("2d_with_indices")
