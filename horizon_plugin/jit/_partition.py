"""Delimiting the quantizable groups of a TorchScript graph."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from horizon_plugin import _C
from horizon_plugin.jit._objects import T, check, graph_of, with_graph, wrap

_ATTRIBUTE = "horizon_partition"


@dataclass(frozen=True)
class ConvolutionReport:
    """What became of one convolution.

    `number` is its place among all convolutions in graph order, `scope` the module it comes from
    where the graph says so, `status` one of "quantized", "skipped" or the reason why neither.
    """

    number: int
    kind: str
    scope: str
    status: str


@dataclass(frozen=True)
class PartitionReport:
    """The options of a partition and what became of every convolution; `str()` is a table."""

    dtype_input: str
    skip_conv_layers: tuple[int, ...]
    skip_dense_layer: bool
    anchors: tuple[str, ...]
    annotate_outputs: bool
    convolutions: tuple[ConvolutionReport, ...]
    text: str = field(repr=False)

    def __str__(self) -> str:
        return self.text


def _check_options(
    dtype_input: Any, skip_conv_layers: Any, anchors: Any
) -> tuple[str, list[int], list[str]]:
    if not isinstance(dtype_input, str):
        raise TypeError(
            f"partition: 'dtype_input' must be a string, got {type(dtype_input).__name__}"
        )
    numbers = [] if skip_conv_layers is None else skip_conv_layers
    if isinstance(numbers, (str, int)) or not isinstance(numbers, Iterable):
        raise TypeError(f"partition: 'skip_conv_layers' must be a list of numbers, got {numbers!r}")
    numbers = list(numbers)
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int):
            raise TypeError(
                f"partition: 'skip_conv_layers' must be a list of numbers, got {number!r} in it"
            )
        if not -(2**63) <= number < 2**63:
            raise ValueError(f"partition: 'skip_conv_layers' must be small numbers, got {number}")
    if isinstance(anchors, str) or not isinstance(anchors, Iterable):
        raise TypeError(f"partition: 'anchors' must be a list of names, got {anchors!r}")
    names = list(anchors)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"partition: 'anchors' must be a list of names, got {name!r} in it")
    return dtype_input, numbers, names


def partition(
    obj: T,
    *,
    dtype_input: str = "int8",
    skip_conv_layers: Sequence[int] | None = None,
    skip_dense_layer: bool = True,
    anchors: Sequence[str] = ("conv1d", "conv2d"),
    annotate_outputs: bool = True,
    prepare: bool = True,
    inplace: bool = False,
) -> T:
    """Put a pair of `annotation::cast_hint` and `stop_fusion` around every quantizable group.

    `obj` is a Graph, ScriptModule (its `forward`) or ScriptFunction; the same kind comes back, and
    `obj` stays as it is unless `inplace`. `docs/partition.md` has the rules.

    Args:
        obj: What to partition. Modules must be in eval mode.
        dtype_input: "int8", "uint8" or "int16", handed to every cast_hint.
        skip_conv_layers: Numbers of convolutions (graph order, see `report`) that stay float.
        skip_dense_layer: False makes linear operators anchors as well.
        anchors: Kinds of convolutions that open a group: conv1d, conv2d, conv_transpose2d.
        annotate_outputs: False leaves returned values without a pair.
        prepare: Freeze a module (folding conv-bn and nothing else), inline, replace in-place
            operators. Without it, calls and in-place operators end a group.
        inplace: Edit the object's own graph. A module that is not frozen wants `prepare=False`.

    Raises:
        TypeError: `obj` or an option is of another type.
        ValueError: Unknown dtypes or anchors, numbers that no convolution has, training mode,
            operators that are not registered, annotations that do not fit.
    """
    check("partition", obj)
    dtype, numbers, names = _check_options(dtype_input, skip_conv_layers, anchors)
    options = (dtype, numbers, bool(skip_dense_layer), names, bool(annotate_outputs), bool(prepare))
    if not isinstance(obj, torch.jit.ScriptModule):
        if inplace:
            _C.jit_partition(graph_of(obj), options, True)
            return obj
        return with_graph(obj, lambda graph: _C.jit_partition(graph, options, False))
    if inplace and prepare and obj._c.hasattr("training"):
        raise ValueError(
            "partition: 'inplace' must be False for a module that is not frozen, as freezing makes "
            "a new one, got True; or pass prepare=False"
        )
    target: Any = obj
    if not inplace:
        target = wrap(_C.jit_freeze(obj._c) if prepare else _C.jit_clone(obj._c))
    _C.jit_partition(graph_of(target), options, True)
    _keep_report(target)
    return target


def _keep_report(module: torch.jit.ScriptModule) -> None:
    # As an attribute the report travels with torch.jit.save, too.
    text = json.dumps(_C.jit_read_record(graph_of(module)))
    if module._c.hasattr(_ATTRIBUTE):
        module._c.setattr(_ATTRIBUTE, text)
    else:
        module._c._register_attribute(_ATTRIBUTE, torch._C.StringType.get(), text)


def recorded_graph(call: str, obj: Any) -> torch.Graph:
    """The graph of a partitioned object, with the record of its partition."""
    check(call, obj)
    graph = graph_of(obj)
    if not _C.jit_has_record(graph):
        module = isinstance(obj, torch.jit.ScriptModule) and obj._c.hasattr(_ATTRIBUTE)
        text = obj._c.getattr(_ATTRIBUTE) if module else ""
        if not text:
            raise ValueError(
                f"{call}: 'obj' must be partitioned, got a graph without the record of a "
                "partition; call horizon.jit.partition first"
            )
        options, rows = json.loads(text)
        _C.jit_write_record(graph, (tuple(options), [tuple(row) for row in rows]))
    return graph


def strip(obj: T) -> T:
    """A copy without annotations, and without the record of a partition; the same kind comes back.

    TypeError for anything but a Graph, ScriptModule or ScriptFunction.
    """
    check("strip", obj)
    if not isinstance(obj, torch.jit.ScriptModule):

        def stripped(graph: torch.Graph) -> torch.Graph:
            copy = graph.copy()
            _C.jit_strip(copy)
            return copy

        return with_graph(obj, stripped)
    target: Any = wrap(_C.jit_clone(obj._c))
    _C.jit_strip(graph_of(target))
    if target._c.hasattr(_ATTRIBUTE):
        target._c.setattr(_ATTRIBUTE, "")
    return target


def report(obj: Any) -> PartitionReport:
    """What the partition of `obj` did with every convolution; ValueError where there was none."""
    graph = recorded_graph("report", obj)
    (dtype, skip, dense, anchors, outputs, _), rows = _C.jit_read_record(graph)
    return PartitionReport(
        dtype_input=dtype,
        skip_conv_layers=tuple(skip),
        skip_dense_layer=dense,
        anchors=tuple(anchors),
        annotate_outputs=outputs,
        convolutions=tuple(ConvolutionReport(*row) for row in rows),
        text=_C.jit_report_text(graph).rstrip(),
    )


def dump(obj: Any, style: str = "relay") -> str:
    """The graph as text.

    `style` "relay" prints one `%n = op(args)` a line, with Relay's names and tensor arguments only;
    "torchscript" prints the graph as PyTorch does. TypeError and ValueError for anything else.
    """
    check("dump", obj)
    if style == "torchscript":
        return str(graph_of(obj))
    if style != "relay":
        raise ValueError(f"dump: 'style' must be 'relay' or 'torchscript', got {style!r}")
    return _C.jit_dump_relay(graph_of(obj))
