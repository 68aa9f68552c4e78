"""Typed wrappers of the public operators in ``torch.ops.horizon``."""

from __future__ import annotations

import torch
from torch import Tensor


def _scale(value: float | Tensor, like: Tensor) -> Tensor:
    if isinstance(value, Tensor):
        return value
    return torch.tensor(value, dtype=torch.float32, device=like.device)


def _zero_point(value: int | Tensor, like: Tensor) -> Tensor:
    if isinstance(value, Tensor):
        return value
    return torch.tensor(value, dtype=torch.int32, device=like.device)


def fake_quantize_per_tensor(
    x: Tensor,
    scale: float | Tensor,
    zero_point: int | Tensor,
    quant_min: int,
    quant_max: int,
) -> Tensor:
    """``(clamp(rint(x / scale) + zero_point, quant_min, quant_max) - zero_point) * scale``.

    Args:
        x: any shape, strides and memory format; float32, float64, float16 or bfloat16.
        scale: finite, positive.
        zero_point: in ``[quant_min, quant_max]``.
        quant_min, quant_max: the range of codes.

    Returns:
        A tensor like `x`. The gradient is passed where the rounded value lies in the range, ends
        included, and is 0 outside. Infinities saturate; NaN stays NaN.

    Raises:
        ValueError, TypeError: an argument out of its range, named.
    """
    return torch.ops.horizon.fake_quantize_per_tensor(
        x, _scale(scale, x), _zero_point(zero_point, x), quant_min, quant_max
    )


def fake_quantize_per_channel(
    x: Tensor,
    scale: Tensor,
    zero_point: int | Tensor,
    axis: int,
    quant_min: int,
    quant_max: int,
) -> Tensor:
    """As `fake_quantize_per_tensor`, with one scale and zero point per index of `axis`.

    Args:
        x: as there, at least 1-d.
        scale: ``[x.size(axis)]``.
        zero_point: ``[x.size(axis)]``, or one number for all channels.
        axis: may be negative.
        quant_min, quant_max: the range of codes.
    """
    if not isinstance(zero_point, Tensor):
        zero_point = torch.full(scale.shape, zero_point, dtype=torch.int32, device=scale.device)
    return torch.ops.horizon.fake_quantize_per_channel(
        x, scale, zero_point, axis, quant_min, quant_max
    )


def quantize(x: Tensor, scale: float | Tensor, zero_point: int | Tensor) -> Tensor:
    """uint8 codes ``clamp(rint(x / scale) + zero_point, 0, 255)``; `zero_point` as stored.

    A signed grid is stored with 128 added. NaN is an error on the CPU.
    """
    return torch.ops.horizon.quantize(x, _scale(scale, x), _zero_point(zero_point, x))


def dequantize(
    q: Tensor, scale: float | Tensor, zero_point: int | Tensor, dtype: torch.dtype | None = None
) -> Tensor:
    """``(q - zero_point) * scale`` of uint8 codes, fp32 unless `dtype` says otherwise."""
    return torch.ops.horizon.dequantize(q, _scale(scale, q), _zero_point(zero_point, q), dtype)


__all__ = ["dequantize", "fake_quantize_per_channel", "fake_quantize_per_tensor", "quantize"]
