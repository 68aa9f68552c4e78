"""The arithmetic of fake quantization and observers, in Python numbers with plain loops."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import torch

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
#: Kinds of layout that `laid_out` knows, for 4-d tensors.
LAYOUTS = ["contiguous", "channels_last", "permuted", "sliced", "offset", "expanded"]
#: quant_min, quant_max, scale and the name of the range rule of the presets 0, 1, 2.
PRESETS = {"horizon": 0, "tensorrt": 1, "x86": 2}


def code(value: float, scale: float, zero_point: int, lo: int, hi: int, wide: bool) -> float:
    """rint(x * (1 / s)) + z before saturation; `wide` computes in fp64, else in fp32."""
    inverse = np.float32(1) / np.float32(scale)
    position = np.float64(value) * np.float64(inverse)
    if not wide:
        position = np.float64(np.float32(position))
    if math.isinf(position):
        return position
    return float(round(float(position)) + zero_point)


def fake_quantize(
    x: torch.Tensor, scale: float, zero_point: int, lo: int, hi: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Value and gradient mask, element by element."""
    step = float(np.float32(scale))
    wide = x.dtype == torch.float64
    values, passes = [], []
    for value in x.double().flatten().tolist():
        if math.isnan(value):
            values.append(math.nan)
            passes.append(0.0)
            continue
        q = code(value, scale, zero_point, lo, hi, wide)
        product = (min(max(q, lo), hi) - zero_point) * step
        values.append(product if wide else float(np.float32(product)))
        passes.append(float(lo <= q <= hi))
    shape = x.shape
    return (
        torch.tensor(values, dtype=torch.float64).reshape(shape).to(x.dtype),
        torch.tensor(passes, dtype=torch.float64).reshape(shape).to(x.dtype),
    )


def laid_out(x: torch.Tensor, layout: str) -> torch.Tensor:
    """The values of a 4-d tensor in other strides (for "expanded": its first image repeated)."""
    if layout == "contiguous":
        return x.contiguous()
    if layout == "channels_last":
        return x.contiguous(memory_format=torch.channels_last)
    if layout == "permuted":
        return x.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0)
    if layout == "sliced":
        n, c, h, w = x.shape
        wide = torch.full((n, c, h, 2 * w + 1), math.nan, dtype=x.dtype)
        wide[..., 1::2] = x
        return wide[..., 1::2]
    if layout == "offset":
        flat = torch.full((x.numel() + 3,), math.nan, dtype=x.dtype)
        flat[3:] = x.flatten()
        return flat[3:].view(x.shape)
    if layout == "expanded":
        return x[:1].expand(x.shape)
    raise AssertionError(layout)


def moving_average(r: float, x: float, c: float) -> float:
    """fma(c, x - r, r) in fp32: the difference is rounded, the sum once."""
    step = np.float32(np.float32(x) - np.float32(r))
    exact = Fraction(float(np.float32(c))) * Fraction(float(step)) + Fraction(float(r))
    return float(np.float32(float(exact)))


def state(**values: float) -> dict[str, torch.Tensor]:
    """The tensors of a quantizer that has seen nothing, but for the given values."""
    tensors = {
        "min_val": torch.zeros(()),
        "max_val": torch.zeros(()),
        "observed": torch.zeros((), dtype=torch.int64),
        "scale": torch.ones(()),
        "zero_point": torch.zeros((), dtype=torch.int32),
    }
    for name, value in values.items():
        tensors[name].fill_(value)
    return tensors


def bits(x: torch.Tensor) -> torch.Tensor:
    """The bit patterns of a float tensor, so that -0 and 0 differ and NaN equals itself."""
    kinds = {8: torch.int64, 4: torch.int32, 2: torch.int16}
    return x.contiguous().view(kinds[x.element_size()])
