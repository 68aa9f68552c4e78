"""The fused family: one class per base x batch norm x add x activation, for every stage.

A stage (float, prepared, converted) supplies one body class per base; `make_family` derives the
named classes from it. ``ConvBNAddReLU62d`` reads: conv2d, batch norm, add, relu6.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from torch import nn

ACTIVATION_NONE, ACTIVATION_RELU, ACTIVATION_RELU6 = 0, 1, 2
BASE_CONV2D, BASE_CONV_TRANSPOSE2D, BASE_LINEAR = 0, 1, 2

_BASE_PREFIX = {
    BASE_CONV2D: ("Conv", "2d"),
    BASE_CONV_TRANSPOSE2D: ("ConvTranspose", "2d"),
    BASE_LINEAR: ("Linear", ""),
}
_ACTIVATION_NAME = {ACTIVATION_NONE: "", ACTIVATION_RELU: "ReLU", ACTIVATION_RELU6: "ReLU6"}


class Variant(NamedTuple):
    """What a fused module consists of."""

    base: int
    has_bn: bool
    has_add: bool
    activation: int

    @property
    def class_name(self) -> str:
        """The name of the class for this variant in every stage's module."""
        prefix, suffix = _BASE_PREFIX[self.base]
        bn = "BN" if self.has_bn else ""
        add = "Add" if self.has_add else ""
        return f"{prefix}{bn}{add}{_ACTIVATION_NAME[self.activation]}{suffix}"


def variants() -> Iterator[Variant]:
    """All 36 variants, the bare bases included."""
    for base in _BASE_PREFIX:
        for has_bn in (False, True):
            for has_add in (False, True):
                for activation in _ACTIVATION_NAME:
                    yield Variant(base, has_bn, has_add, activation)


def make_family(
    bodies: Mapping[tuple[int, bool], type], module: str, doc: str
) -> dict[Variant, type]:
    """Derive the named classes of one stage.

    Args:
        bodies: (base, has_add) -> class that implements the stage for it: a call, or `add`.
        module: the module that publishes the classes, so that they pickle.
        doc: a format string with ``{name}`` for the docstrings.
    """
    family = {}
    for variant in variants():
        body = bodies[variant.base, variant.has_add]
        name = variant.class_name
        family[variant] = type(
            name,
            (body,),
            {
                "__module__": module,
                "__qualname__": name,
                "__doc__": doc.format(name=name),
                "variant": variant,
                "has_bn": variant.has_bn,
                "has_add": variant.has_add,
                "activation": variant.activation,
                "base": variant.base,
            },
        )
    return family


_MODULE_INTERNALS = frozenset(nn.Module().__dict__)


def adopt(target: nn.Module, source: nn.Module) -> None:
    """Make `target`, freshly allocated, hold what `source` holds.

    Parameters, buffers and children are the same objects; plain attributes are copied by
    reference; hooks stay behind (they are moved where the caller says).
    """
    nn.Module.__init__(target)
    for name, value in source.__dict__.items():
        if name not in _MODULE_INTERNALS:
            target.__dict__[name] = value
    target._parameters.update(source._parameters)
    target._buffers.update(source._buffers)
    target._non_persistent_buffers_set.update(source._non_persistent_buffers_set)
    target._modules.update(source._modules)
    target.training = source.training


def move_hooks(target: nn.Module, first: nn.Module, last: nn.Module) -> None:
    """Give `target` the pre-hooks of `first` and the forward hooks of `last`."""
    pre = ("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs")
    post = (
        "_forward_hooks",
        "_forward_hooks_with_kwargs",
        "_forward_hooks_always_called",
    )
    # The dictionaries themselves move, because the handles that users hold remove from them.
    for names, source in ((pre, first), (post, last)):
        for name in names:
            target.__dict__[name] = source.__dict__[name]
