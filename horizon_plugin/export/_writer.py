"""Collects the nodes and constants of an ONNX graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

#: The newest form in use is Pad with mode "wrap", of 19.
OPSET = 19
#: What opset 19 came with: onnx 1.14, onnxruntime 1.15.
IR_VERSION = 9


def require_onnx() -> Any:
    """The `onnx` package; ImportError with the remedy where it is missing."""
    try:
        import onnx
    except ImportError as error:
        raise ImportError(
            "to_onnx: needs the package onnx: pip install horizon-plugin[onnx]"
        ) from error
    return onnx


@dataclass(frozen=True)
class Value:
    """A tensor that the graph computes. Sizes that follow the batch are None."""

    name: str
    shape: tuple[int | None, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Grid:
    """Names of the constants scale (fp32) and stored zero point (uint8), and their numbers."""

    scale: str
    zero_point: str
    step: float
    zero: int


class Writer:
    """Makes names unique, and writes each constant once."""

    def __init__(self) -> None:
        self.onnx = require_onnx()
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self._names: set[str] = set()
        self._constants: dict[tuple[Any, ...], str] = {}

    def name(self, hint: str) -> str:
        """`hint`, or `hint` with a number behind it where that is taken."""
        name, number = hint, 1
        while name in self._names:
            name, number = f"{hint}_{number}", number + 1
        self._names.add(name)
        return name

    def constant(self, hint: str, value: Tensor, owner: str = "") -> str:
        """The name of an initializer that holds `value`; equal ones are shared, of one owner."""
        array = value.detach().cpu().contiguous().numpy()
        key = (owner, str(array.dtype), array.shape, array.tobytes())
        if key not in self._constants:
            name = self.name(hint)
            self.initializers.append(self.onnx.numpy_helper.from_array(array, name))
            self._constants[key] = name
        return self._constants[key]

    def integers(self, hint: str, values: Sequence[int]) -> str:
        """An int64 vector."""
        return self.constant(hint, torch.tensor(list(values), dtype=torch.int64))

    def grid(self, hint: str, scale: Tensor, zero_point: Tensor) -> Grid:
        """The constants of a grid: 0-d or of one entry."""
        s = scale.detach().reshape(()).to(torch.float32)
        z = zero_point.detach().reshape(()).to(torch.uint8)
        return Grid(
            self.constant(f"{hint}.scale", s),
            self.constant(f"{hint}.zero_point", z),
            float(s),
            int(z),
        )

    def node(self, op: str, inputs: Sequence[str], hint: str, **attributes: Any) -> str:
        """A node with one result; its name."""
        return self.nodes_out(op, inputs, [hint], **attributes)[0]

    def nodes_out(
        self, op: str, inputs: Sequence[str], hints: Sequence[str], **attributes: Any
    ) -> list[str]:
        """A node with several results; their names."""
        results = [self.name(hint) for hint in hints]
        given = {key: value for key, value in attributes.items() if value is not None}
        self.nodes.append(
            self.onnx.helper.make_node(op, list(inputs), results, name=results[0], **given)
        )
        return results

    def quantize(self, x: str, grid: Grid, hint: str) -> str:
        """uint8 codes of an fp32 value."""
        return self.node("QuantizeLinear", [x, grid.scale, grid.zero_point], f"{hint}.codes")

    def dequantize(self, codes: str, grid: Grid, hint: str) -> str:
        """The fp32 values of uint8 codes. Every consumer gets a node of its own, to fuse with."""
        inputs = [codes, grid.scale, grid.zero_point]
        return self.node("DequantizeLinear", inputs, f"{hint}.real")

    def element_type(self, dtype: torch.dtype) -> int:
        """ONNX's number of a dtype; KeyError for those that it lacks."""
        return int(self.onnx.helper.np_dtype_to_tensor_dtype(_numpy_dtype(dtype)))


def _numpy_dtype(dtype: torch.dtype) -> Any:
    return torch.empty(0, dtype=dtype).numpy().dtype
