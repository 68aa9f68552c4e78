"""Each method of FloatFunctional as float arithmetic and as integer arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Grids = list[tuple[Tensor, Tensor]]

FLOAT: dict[str, Callable[..., Tensor]] = {
    "add": lambda t: torch.add(t[0], t[1]),
    "add_relu": lambda t: F.relu(torch.add(t[0], t[1])),
    "add_scalar": lambda t, c: torch.add(t[0], c),
    "sub": lambda t: torch.sub(t[0], t[1]),
    "mul": lambda t: torch.mul(t[0], t[1]),
    "mul_scalar": lambda t, c: torch.mul(t[0], c),
    "cat": lambda t, dim: torch.cat(t, dim),
    "mean": lambda t, dim, keepdim: torch.mean(t[0], dim, keepdim),
    "matmul": lambda t: torch.matmul(t[0], t[1]),
}


def _binary(name: str, activation: int, alpha: float | None) -> Any:
    def run(q: list[Tensor], g: Grids, s: Tensor, z: Tensor) -> Tensor:
        op = getattr(torch.ops.horizon, name)
        extra = (activation,) if alpha is None else (activation, alpha)
        return op(q[0], g[0][0], g[0][1], q[1], g[1][0], g[1][1], s, z, *extra)

    return run


def _affine(q: Tensor, g: tuple[Tensor, Tensor], a: float, b: float, s: Any, z: Any) -> Tensor:
    return torch.ops.horizon.quantized_affine_scalar(q, g[0], g[1], a, b, s, z, 0)


def _cat(q: list[Tensor], g: Grids, s: Tensor, z: Tensor, dim: int) -> Tensor:
    return torch.ops.horizon.quantized_cat(q, [x for x, _ in g], [x for _, x in g], dim, s, z)


def _mean(q: list[Tensor], g: Grids, s: Tensor, z: Tensor, dim: list[int], keep: bool) -> Tensor:
    return torch.ops.horizon.quantized_mean(q[0], g[0][0], g[0][1], dim, keep, s, z)


def _matmul(q: list[Tensor], g: Grids, s: Tensor, z: Tensor) -> Tensor:
    x, y = (torch.ops.horizon.dequantize(t, a, b, None) for t, (a, b) in zip(q, g, strict=True))
    return torch.ops.horizon.quantize(torch.matmul(x, y), s, z)


INTEGER: dict[str, Callable[..., Tensor]] = {
    "add": _binary("quantized_add", 0, 1.0),
    "add_relu": _binary("quantized_add", 1, 1.0),
    "add_scalar": lambda q, g, s, z, c: _affine(q[0], g[0], 1.0, float(c), s, z),
    "sub": _binary("quantized_add", 0, -1.0),
    "mul": _binary("quantized_mul", 0, None),
    "mul_scalar": lambda q, g, s, z, c: _affine(q[0], g[0], float(c), 0.0, s, z),
    "cat": _cat,
    "mean": _mean,
    "matmul": _matmul,
}
