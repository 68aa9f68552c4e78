"""Single operators on codes: the float operator between DequantizeLinear and QuantizeLinear."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from horizon_plugin.export._groups import bounded_codes
from horizon_plugin.export._step import Step, Unsupported, fixed, spatial, without_batch
from horizon_plugin.export._writer import Grid, Value


def quantize(step: Step, x: Value, scale: Tensor, zero_point: Tensor) -> Value:
    """QuantizeLinear."""
    name = step.use(x)
    if x.dtype != torch.float32:
        name = step.cast(name, torch.float32)
    return step.value(step.quantize(name, step.grid(scale, zero_point)))


def dequantize(
    step: Step, q: Value, scale: Tensor, zero_point: Tensor, dtype: torch.dtype | None
) -> Value:
    """DequantizeLinear."""
    name = step.dequantize(q, step.grid(scale, zero_point))
    return step.value(name if step.dtype == torch.float32 else step.cast(name, step.dtype))


def _finish(step: Step, x: str, scale: Tensor, zero_point: Tensor, activation: int = 0) -> Value:
    grid = step.grid(scale, zero_point)
    return step.value(bounded_codes(step, step.quantize(x, grid), grid, activation))


def quantized_add(
    step: Step,
    a: Value,
    a_scale: Tensor,
    a_zero_point: Tensor,
    b: Value,
    b_scale: Tensor,
    b_zero_point: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    activation: int,
    alpha: float,
) -> Value:
    """Add, or Sub for an alpha of -1."""
    operands = [
        step.dequantize(a, step.grid(a_scale, a_zero_point)),
        step.dequantize(b, step.grid(b_scale, b_zero_point)),
    ]
    y = step.node("Sub" if alpha < 0 else "Add", *operands)
    return _finish(step, y, scale, zero_point, activation)


def quantized_mul(
    step: Step,
    a: Value,
    a_scale: Tensor,
    a_zero_point: Tensor,
    b: Value,
    b_scale: Tensor,
    b_zero_point: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    activation: int,
) -> Value:
    """Mul."""
    y = step.node(
        "Mul",
        step.dequantize(a, step.grid(a_scale, a_zero_point)),
        step.dequantize(b, step.grid(b_scale, b_zero_point)),
    )
    return _finish(step, y, scale, zero_point, activation)


def quantized_cat(
    step: Step,
    q: list[Value],
    scales: list[Tensor],
    zero_points: list[Tensor],
    dim: int,
    scale: Tensor,
    zero_point: Tensor,
) -> Value:
    """Concat."""
    grids = [step.grid(s, z) for s, z in zip(scales, zero_points, strict=True)]
    parts = [step.dequantize(x, grid) for x, grid in zip(q, grids, strict=True)]
    return _finish(step, step.node("Concat", *parts, axis=dim), scale, zero_point)


def _affine(
    step: Step, q: Value, grid: Grid, factor: Tensor, offset: Tensor, output: Grid, activation: int
) -> Value:
    column = (-1,) + (1,) * (len(q.shape) - 2) if factor.numel() > 1 else ()
    x = step.dequantize(q, grid)
    for op, operand, neutral in (("Mul", factor, 1.0), ("Add", offset, 0.0)):
        if bool((operand != neutral).any()):
            x = step.node(op, x, operand.to(torch.float32).reshape(column))
    return step.value(bounded_codes(step, step.quantize(x, output), output, activation))


def quantized_affine(
    step: Step,
    q: Value,
    q_scale: Tensor,
    q_zero_point: Tensor,
    factor: Tensor,
    offset: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    activation: int,
) -> Value:
    """Mul and Add of one number, or of one per channel."""
    factor, offset = torch.broadcast_tensors(factor.reshape(-1), offset.reshape(-1))
    grid, output = step.grid(q_scale, q_zero_point), step.grid(scale, zero_point)
    return _affine(step, q, grid, factor, offset, output, activation)


def quantized_affine_scalar(
    step: Step,
    q: Value,
    q_scale: Tensor,
    q_zero_point: Tensor,
    factor: float,
    offset: float,
    scale: Tensor,
    zero_point: Tensor,
    activation: int,
) -> Value:
    """Mul and Add of numbers."""
    grid, output = step.grid(q_scale, q_zero_point), step.grid(scale, zero_point)
    numbers = [torch.tensor(number, dtype=torch.float64) for number in (factor, offset)]
    return _affine(step, q, grid, numbers[0], numbers[1], output, activation)


def pair(sizes: list[int]) -> list[int]:
    """Height and width; operators take one number for both."""
    return list(sizes) * 2 if len(sizes) == 1 else list(sizes)


def window(
    step: Step,
    x: Value,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    ceil_mode: bool,
) -> dict[str, Any]:
    """Attributes of a pool. A ceiled size becomes padding at the end, where it adds windows."""
    kernel, padding, dilation = pair(kernel), pair(padding), pair(dilation)
    stride = pair(stride) if stride else kernel
    ends = list(padding)
    if ceil_mode:
        sizes = fixed(x.shape[-2:], "a size of a pool with ceil_mode")
        results = fixed(step.shape[-2:], "a size of a pool with ceil_mode")
        for i in range(2):
            reach = (results[i] - 1) * stride[i] + dilation[i] * (kernel[i] - 1) + 1
            ends[i] = max(ends[i], reach - sizes[i] - padding[i])
    return {"kernel_shape": kernel, "strides": stride, "pads": [*padding, *ends]}


def average_pool(
    step: Step,
    x: Value,
    name: str,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor: int | None,
) -> str:
    """AveragePool of an fp32 value that is named; `x` has its sizes."""
    kernel, padding = pair(kernel), pair(padding)
    attributes = window(step, x, kernel, stride, padding, [1, 1], ceil_mode)
    if attributes["pads"] != [*padding, *padding] and (count_include_pad or divisor):
        raise Unsupported("an average pool whose ceil_mode adds windows that count padding")
    counted = count_include_pad or divisor is not None
    y = step.node("AveragePool", name, count_include_pad=int(counted), **attributes)
    if divisor is not None:
        y = step.node("Mul", y, torch.tensor(kernel[0] * kernel[1] / divisor))
    return y


def quantized_avg_pool2d(
    step: Step,
    q: Value,
    q_scale: Tensor,
    q_zero_point: Tensor,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor: int | None,
    scale: Tensor,
    zero_point: Tensor,
) -> Value:
    """AveragePool."""
    codes, added = spatial(step, q)
    x = step.writer.dequantize(codes, step.grid(q_scale, q_zero_point), step.hint)
    y = average_pool(step, q, x, kernel, stride, padding, ceil_mode, count_include_pad, divisor)
    return _finish(step, without_batch(step, y, added), scale, zero_point)


def adaptive_average(step: Step, x: Value, name: str, output: list[int]) -> str:
    """GlobalAveragePool, AveragePool where sizes divide, else two products with constants."""
    if list(output) == [1, 1]:
        return step.node("GlobalAveragePool", name)
    sizes = fixed(x.shape[-2:], "a size of an adaptive pool")
    if all(size % wanted == 0 for size, wanted in zip(sizes, output, strict=True)):
        kernel = [size // wanted for size, wanted in zip(sizes, output, strict=True)]
        return step.node("AveragePool", name, kernel_shape=kernel, strides=kernel)
    rows, columns = (_averages(size, wanted) for size, wanted in zip(sizes, output, strict=True))
    return step.node("MatMul", rows, step.node("MatMul", name, columns.t()))


def _averages(size: int, wanted: int) -> Tensor:
    """[wanted, size]: each row averages the window of one output."""
    made = torch.zeros(wanted, size)
    for i in range(wanted):
        first, end = i * size // wanted, -(-(i + 1) * size // wanted)
        made[i, first:end] = 1.0 / (end - first)
    return made


def quantized_adaptive_avg_pool2d(
    step: Step,
    q: Value,
    q_scale: Tensor,
    q_zero_point: Tensor,
    output: list[int],
    scale: Tensor,
    zero_point: Tensor,
) -> Value:
    """An average over windows that cover the image."""
    codes, added = spatial(step, q)
    x = step.writer.dequantize(codes, step.grid(q_scale, q_zero_point), step.hint)
    y = adaptive_average(step, q, x, output)
    return _finish(step, without_batch(step, y, added), scale, zero_point)


def quantized_mean(
    step: Step,
    q: Value,
    q_scale: Tensor,
    q_zero_point: Tensor,
    dim: list[int],
    keepdim: bool,
    scale: Tensor,
    zero_point: Tensor,
) -> Value:
    """ReduceMean."""
    x = step.dequantize(q, step.grid(q_scale, q_zero_point))
    axes = step.writer.integers("axes", dim or range(len(q.shape)))
    return _finish(step, step.node("ReduceMean", x, axes, keepdims=int(keepdim)), scale, zero_point)


def quantized_max_pool2d(
    step: Step,
    q: Value,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    ceil_mode: bool,
) -> Value:
    """MaxPool on codes."""
    codes, added = spatial(step, q)
    attributes = window(step, q, kernel, stride, padding, dilation, ceil_mode)
    y = step.node("MaxPool", codes, dilations=pair(dilation), **attributes)
    return step.value(without_batch(step, y, added))


def quantized_lookup(step: Step, q: Value, table: Tensor) -> Value:
    """Gather from the table, which is exact."""
    return step.emit("Gather", table, step.cast(step.use(q), torch.int32), axis=0)


EMITTERS: dict[str, Callable[..., Any]] = {
    f"horizon::{emit.__name__}": emit
    for emit in (
        quantize,
        dequantize,
        quantized_add,
        quantized_mul,
        quantized_cat,
        quantized_affine,
        quantized_affine_scalar,
        quantized_avg_pool2d,
        quantized_adaptive_avg_pool2d,
        quantized_mean,
        quantized_max_pool2d,
        quantized_lookup,
    )
}
