"""Tables of elementwise functions, read back as the functions themselves."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from horizon_plugin.export import _aten_ops
from horizon_plugin.export._step import Step
from horizon_plugin.export._writer import Value

#: Functions that are one ONNX operator, which runtimes know between two quantizers. All others
#: stay tables.
_FUNCTIONS = frozenset("hardswish hardsigmoid sigmoid tanh leaky_relu elu mish hardtanh".split())


def _calls(node: Any, name: str) -> bool:
    return (
        isinstance(node, fx.Node)
        and getattr(node.target, "_schema", None) is not None
        and (
            node.target._schema.name == name  # type: ignore[union-attr]
        )
    )


def function_of(lookup: fx.Node) -> fx.Node | None:
    """The call whose values at all codes are the table of `lookup`; None for other tables."""
    table = lookup.args[1]
    if not _calls(table, "horizon::quantize"):
        return None
    function = table.args[0]  # type: ignore[union-attr]
    names = [f"aten::{name}" for name in _FUNCTIONS]
    if not any(_calls(function, name) for name in names):
        return None
    if _calls(function, "aten::elu") and len(function.args) > 2:  # type: ignore[union-attr]
        return None  # a SELU or CELU
    made_of = function.args[0]  # type: ignore[union-attr]
    return function if _calls(made_of, "horizon::dequantize") else None  # type: ignore[return-value]


def write(
    step: Step,
    q: Value,
    function: fx.Node,
    arguments: list[Any],
    grid: tuple[Tensor, Tensor],
    output: tuple[Tensor, Tensor],
) -> Value:
    """DequantizeLinear, the function, QuantizeLinear; `arguments` are those behind the operand."""
    target: Any = function.target
    emit = _aten_ops.EMITTERS[f"{target._schema.name}.{target._overloadname or 'default'}"]
    x = Value(step.dequantize(q, step.grid(*grid)), q.shape, torch.float32)
    sample = torch.empty(0, dtype=torch.float32)
    inner = Step(step.writer, step.hint, step.layer, sample)
    y = emit(inner, x, *arguments)
    return step.value(step.quantize(y.name, step.grid(*output)))
