"""ATen operators on images: convolutions, pools, padding, interpolation. Padding and nearest
interpolation serve codes as well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from horizon_plugin.export._single_ops import adaptive_average, average_pool, pair, window
from horizon_plugin.export._step import Step, fixed, spatial, without_batch
from horizon_plugin.export._writer import Value

Operand = Value | Tensor


def _convolution(
    step: Step,
    x: Operand,
    weight: Operand,
    bias: Operand | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
) -> Value:
    inputs: list[Any] = [x, weight] if bias is None else [x, weight, bias]
    return step.emit(
        "ConvTranspose" if transposed else "Conv",
        *inputs,
        strides=list(stride),
        pads=[*padding, *padding],
        dilations=list(dilation),
        group=groups,
        output_padding=list(output_padding) if transposed else None,
    )


def _max_pool(
    step: Step,
    x: Value,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    ceil_mode: bool,
) -> list[Value]:
    name, added = spatial(step, x)
    attributes = window(step, x, kernel, stride, padding, dilation, ceil_mode)
    y = step.node("MaxPool", name, dilations=pair(dilation), **attributes)
    return [step.value(without_batch(step, y, added))]


def _avg_pool(
    step: Step,
    x: Value,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor: int | None,
) -> Value:
    name, added = spatial(step, x)
    y = average_pool(step, x, name, kernel, stride, padding, ceil_mode, count_include_pad, divisor)
    return step.value(without_batch(step, y, added))


def _adaptive_avg_pool(step: Step, x: Value, output: list[int]) -> Value:
    name, added = spatial(step, x)
    return step.value(without_batch(step, adaptive_average(step, x, name, output), added))


def _pad(step: Step, x: Operand, pad: list[int], mode: str, value: float | None) -> Value:
    names = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
    rank = len(x.shape)
    begin, end = [0] * rank, [0] * rank
    for i in range(len(pad) // 2):
        begin[rank - 1 - i], end[rank - 1 - i] = pad[2 * i], pad[2 * i + 1]
    inputs = [step.writer.integers("pads", [*begin, *end])]
    if mode == "constant":
        inputs.append(step.use(torch.tensor(value or 0, dtype=x.dtype)))
    return step.emit("Pad", x, *inputs, mode=names[mode])


def _nearest(step: Step, x: Operand, *_: Any) -> Value:
    sizes = fixed(x.shape[2:], "a size of an interpolation")
    results = fixed(step.shape[2:], "a size of an interpolation")
    if all(result % size == 0 for size, result in zip(sizes, results, strict=True)):
        scales = [result / size for size, result in zip(sizes, results, strict=True)]
        return step.value(_resize(step, x, scales, "nearest", "asymmetric"))
    # Which pixel is nearest depends on the rounding of a quotient: the indices are torch's.
    name = step.use(x)
    for axis, (size, result) in enumerate(zip(sizes, results, strict=True), 2):
        places = torch.arange(size, dtype=torch.float32).reshape(1, 1, size)
        index = F.interpolate(places, size=result).reshape(-1).long()
        name = step.node("Gather", name, index, axis=axis)
    return step.value(name)


def _bilinear(
    step: Step, x: Operand, size: list[int] | None, align_corners: bool, factors: list[float] | None
) -> Value:
    coordinates = "align_corners" if align_corners else "half_pixel"
    if factors and not align_corners:
        return step.value(_resize(step, x, list(factors), "linear", coordinates))
    results = fixed(step.shape[2:], "a size of an interpolation")
    target = step.writer.integers("sizes", results)
    return step.emit(
        "Resize",
        x,
        "",
        "",
        target,
        axes=[2, 3],
        mode="linear",
        coordinate_transformation_mode=coordinates,
    )


def _resize(step: Step, x: Operand, factors: list[float], mode: str, coordinates: str) -> str:
    return step.node(
        "Resize",
        x,
        "",
        torch.tensor([1.0, 1.0, *factors]),
        mode=mode,
        coordinate_transformation_mode=coordinates,
        nearest_mode="floor" if mode == "nearest" else None,
    )


EMITTERS: dict[str, Callable[..., Any]] = {
    "aten::convolution.default": _convolution,
    "aten::max_pool2d_with_indices.default": _max_pool,
    "aten::avg_pool2d.default": _avg_pool,
    "aten::_adaptive_avg_pool2d.default": _adaptive_avg_pool,
    "aten::pad.default": _pad,
    "aten::upsample_nearest2d.vec": _nearest,
    "aten::upsample_bilinear2d.vec": _bilinear,
}
