"""One operator of a trace on its way into an ONNX graph: what the emitters are given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from horizon_plugin.export._writer import Grid, Value, Writer


class Unsupported(Exception):
    """An operator, or arguments of it, that have no form in ONNX. The walk adds op and layer."""


class Step:
    """The writer, and the name, layer and result of the operator at hand.

    Operands are `Value` (computed by the graph), tensors (constants), numbers and lists of those.
    """

    def __init__(self, writer: Writer, hint: str, layer: str, result: Any) -> None:
        self.writer = writer
        self.hint = hint
        self.layer = layer
        self._result = result

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Sizes of the (first) result; None follows the batch."""
        return shape_of(self._first())

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the (first) result."""
        return self._first().dtype

    def _first(self) -> Tensor:
        return self._result[0] if isinstance(self._result, (tuple, list)) else self._result

    def results(self) -> list[Tensor]:
        """The traced results."""
        return list(self._result) if isinstance(self._result, (tuple, list)) else [self._result]

    def use(self, operand: Value | Tensor | float) -> str:
        """The name of an operand; numbers take the dtype of the result."""
        if isinstance(operand, Value):
            return operand.name
        if not isinstance(operand, Tensor):
            operand = torch.tensor(operand, dtype=self.dtype)
        operand = operand.to(_wide(operand.dtype))
        return self.writer.constant(f"{self.hint}.constant", operand)

    def node(self, op: str, *inputs: Value | Tensor | float | str, **attributes: Any) -> str:
        """A node on operands or names."""
        names = [x if isinstance(x, str) else self.use(x) for x in inputs]
        return self.writer.node(op, names, self.hint, **attributes)

    def value(self, name: str) -> Value:
        """The operator's result under the name of the node that computes it."""
        return Value(name, self.shape, self.dtype)

    def emit(self, op: str, *inputs: Value | Tensor | float | str, **attributes: Any) -> Value:
        """A node that computes the operator's result."""
        return self.value(self.node(op, *inputs, **attributes))

    def grid(self, scale: Any, zero_point: Any) -> Grid:
        """A grid, which is constant in every converted model."""
        if not isinstance(scale, Tensor) or not isinstance(zero_point, Tensor):
            raise Unsupported("a scale that is computed")
        return self.writer.grid(self.hint, scale, zero_point)

    def dequantize(self, codes: Value | Tensor, grid: Grid) -> str:
        """The fp32 values of codes, for one consumer."""
        return self.writer.dequantize(self.use(codes), grid, self.hint)

    def quantize(self, x: str, grid: Grid) -> str:
        """Codes of an fp32 value."""
        return self.writer.quantize(x, grid, self.hint)

    def reshape(self, name: str, shape: Sequence[int | None]) -> str:
        """A view; at most one size may follow the batch."""
        if sum(size is None for size in shape) > 1:
            raise Unsupported("a shape in which several sizes follow the batch")
        target = self.writer.integers("shape", [-1 if size is None else size for size in shape])
        return self.node("Reshape", name, target)

    def cast(self, name: str, dtype: torch.dtype) -> str:
        """Another dtype."""
        return self.node("Cast", name, to=self.writer.element_type(_wide(dtype)))

    def clip_codes(self, codes: str, low: int, high: int) -> str:
        """Codes in [low, high]: exactly what a bound before the rounding gives."""
        if low <= 0 and high >= 255:
            return codes
        bounds = [torch.tensor(b, dtype=torch.uint8) for b in (max(low, 0), min(high, 255))]
        return self.node("Clip", codes, *bounds)


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Centred codes are int16, in which runtimes have no arithmetic."""
    return torch.int32 if dtype == torch.int16 else dtype


def shape_of(x: Tensor) -> tuple[int | None, ...]:
    """Sizes; None for those that follow the batch."""
    return tuple(size if isinstance(size, int) else None for size in x.shape)


def fixed(shape: Sequence[int | None], what: str) -> list[int]:
    """Sizes that must not follow the batch."""
    sizes = [size for size in shape if size is not None]
    if len(sizes) != len(shape):
        raise Unsupported(f"{what} that follows the batch")
    return sizes


def spatial(step: Step, x: Value | Tensor, rank: int = 4) -> tuple[str, bool]:
    """`x` with a batch dimension, and whether it had to be added."""
    name = step.use(x)
    if len(x.shape) == rank:
        return name, False
    return step.node("Unsqueeze", name, step.writer.integers("axes", [0])), True


def without_batch(step: Step, name: str, added: bool) -> str:
    """Takes the dimension that `spatial` added away again."""
    return step.node("Squeeze", name, step.writer.integers("axes", [0])) if added else name
