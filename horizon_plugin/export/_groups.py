"""Convolution, transposed convolution and linear groups: a float operator between quantizers."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from horizon_plugin.export._step import Step, spatial, without_batch
from horizon_plugin.export._writer import Grid, Value

_LINEAR, _TRANSPOSED = 2, 1
_RELU, _RELU6 = 1, 2
_INT32_MAX = 2**31 - 1
_SMALLEST = torch.finfo(torch.float32).tiny


@dataclass
class Parameters:
    """Weights and bias with the batch norm folded in, per output channel.

    `codes` int8 with the output channel first; `scale` fp32; `bias` fp64; `bias_codes` int32 in
    units of `bias_unit` = input scale times weight scale, or None where int32 would saturate.
    """

    codes: Tensor
    scale: Tensor
    bias: Tensor
    bias_codes: Tensor | None
    bias_unit: Tensor


def _output_first(weight: Tensor, base: int, groups: int) -> Tensor:
    if base != _TRANSPOSED:
        return weight
    inputs, outputs, *kernel = weight.shape
    split = weight.reshape(groups, inputs // groups, outputs, *kernel)
    return split.transpose(1, 2).reshape(groups * outputs, inputs // groups, *kernel)


def fold(codes: Tensor, scale: Tensor, factor: Tensor, offset: Tensor, step: float) -> Parameters:
    """Fold a batch norm: |factor| into the scale, its sign into the codes, which never are -128.

    A factor of zero gives codes of zero. Channels whose codes are all zero are free in their scale,
    and take one in which their bias is exact to 2^-25.
    """
    column = (-1,) + (1,) * (codes.dim() - 1)
    real = scale.double() * factor.abs()
    sign = torch.where(real < _SMALLEST, torch.zeros_like(factor), factor.sign())
    codes = codes * sign.to(torch.int8).view(column)
    free = codes.flatten(1).eq(0).all(1)
    chosen = (offset.abs() / (step * 2.0**24)).clamp_min(2.0**-80)
    chosen = torch.where(offset == 0, torch.ones_like(chosen), chosen)
    real = torch.where(free, chosen, real).to(torch.float32)
    unit = (real.double() * step).to(torch.float32)
    bias = torch.round(offset / unit.double())
    # A kernel adds the bias to the sum of products in int32.
    room = _INT32_MAX - codes[0].numel() * 255 * 127
    fits = bool((bias.abs() <= room).all() and (unit >= _SMALLEST).all())
    return Parameters(codes, real, offset, bias.to(torch.int32) if fits else None, unit)


def _weight(step: Step, folded: Parameters, base: int, groups: int) -> str:
    w = step.writer
    codes, axis = folded.codes, 0
    if base == _TRANSPOSED and groups == 1:
        codes, axis = codes.transpose(0, 1), 1
    # A zero point is optional in ONNX, but without it onnxruntime's Gemm stays in float; and it
    # cannot rewrite layers that share one for machines without VNNI.
    zero_points = torch.zeros_like(folded.scale, dtype=torch.int8)
    inputs = [
        w.constant(f"{step.layer}.weight", codes, owner=step.layer),
        w.constant(f"{step.layer}.weight_scale", folded.scale),
        w.constant(f"{step.layer}.weight_zero_point", zero_points, owner=step.layer),
    ]
    real = w.node("DequantizeLinear", inputs, f"{step.hint}.weight", axis=axis)
    if base == _TRANSPOSED and groups > 1:
        # One axis cannot name the output channel of a group in ONNX's layout.
        outputs, inputs_per_group, *kernel = codes.shape
        real = step.reshape(real, [groups, outputs // groups, inputs_per_group, *kernel])
        real = step.node("Transpose", real, perm=[0, 2, 1, 3, 4])
        real = step.reshape(real, [groups * inputs_per_group, outputs // groups, *kernel])
    return real


def _bias(step: Step, folded: Parameters, integer: bool) -> tuple[list[str], Tensor | None]:
    """The operator's bias operand, or what to add behind it."""
    w = step.writer
    if not bool(folded.bias.any()):
        return [], None
    if folded.bias_codes is None:
        return [], folded.bias.to(torch.float32)
    if not integer:
        return [w.constant(f"{step.layer}.bias", folded.bias.to(torch.float32))], None
    inputs = [
        w.constant(f"{step.layer}.bias", folded.bias_codes),
        w.constant(f"{step.layer}.bias_scale", folded.bias_unit),
    ]
    return [w.node("DequantizeLinear", inputs, f"{step.hint}.bias", axis=0)], None


def _pads(padding: list[int]) -> list[int]:
    return list(padding) if len(padding) == 4 else [*padding, *padding]


def bounded(step: Step, x: str, activation: int) -> str:
    """ReLU or ReLU6 of an fp32 value."""
    if activation == _RELU:
        return step.node("Relu", x)
    if activation == _RELU6:
        return step.node("Clip", x, torch.tensor(0.0), torch.tensor(6.0))
    return x


def bounded_codes(step: Step, codes: str, grid: Grid, activation: int) -> str:
    """ReLU or ReLU6 of codes. In front of the quantizer it would keep int8 kernels from fusing."""
    if activation not in (_RELU, _RELU6):
        return codes
    top = 255
    if activation == _RELU6:
        bound = torch.tensor(6.0 / grid.step) + float(grid.zero)
        top = int(bound.round().clamp_max(255.0))
    return step.clip_codes(codes, grid.zero, top)


def quantized_conv(
    step: Step,
    x: Value,
    x_scale: Tensor,
    x_zero_point: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    factor: Tensor,
    offset: Tensor,
    skip: Value | None,
    skip_scale: Tensor | None,
    skip_zero_point: Tensor | None,
    scale: Tensor | None,
    zero_point: Tensor | None,
    base: int,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    output_padding: list[int],
    groups: int,
    activation: int,
) -> Value:
    """DequantizeLinear, Conv / ConvTranspose / Gemm, Add, activation, QuantizeLinear."""
    grid = step.grid(x_scale, x_zero_point)
    folded = fold(
        _output_first(weight, base, groups), weight_scale, factor, offset.double(), grid.step
    )
    if folded.bias_codes is None:
        warnings.warn(
            f"to_onnx: the bias of {step.layer} does not fit int32 in units of its input's and "
            "weight's scales: it is added in float, so that runtimes run this layer in float; "
            "retrain with a larger weight or batch norm factor in that channel to avoid it",
            UserWarning,
            stacklevel=2,
        )
    integer = base == _LINEAR or (base != _TRANSPOSED and skip is None and scale is not None)
    bias, behind = _bias(step, folded, integer)
    if base == _LINEAR:
        y = _gemm(step, x, grid, folded, bias)
        column = folded.bias.shape
    else:
        codes, added = spatial(step, x)
        operands = [step.writer.dequantize(codes, grid, step.hint)]
        operands += [_weight(step, folded, base, groups), *bias]
        y = step.node(
            "ConvTranspose" if base == _TRANSPOSED else "Conv",
            *operands,
            strides=list(stride),
            pads=_pads(padding),
            dilations=list(dilation),
            group=groups,
            output_padding=list(output_padding) if base == _TRANSPOSED else None,
        )
        y = without_batch(step, y, added)
        column = torch.Size([folded.bias.numel(), 1, 1])
    if behind is not None:
        y = step.node("Add", y, behind.reshape(column))
    if base == _LINEAR and len(x.shape) != 2 and (skip is not None or scale is None):
        y = step.reshape(y, step.shape)
    if skip is not None:
        y = step.node("Add", y, step.dequantize(skip, step.grid(skip_scale, skip_zero_point)))
    if scale is None or skip is not None:
        y = bounded(step, y, activation)
    if scale is None:
        return step.value(y)
    output = step.grid(scale, zero_point)
    codes = step.quantize(y, output)
    if skip is None:
        codes = bounded_codes(step, codes, output, activation)
        if base == _LINEAR and len(x.shape) != 2:
            codes = step.reshape(codes, step.shape)
    return step.value(codes)


def _gemm(step: Step, x: Value, grid: Grid, folded: Parameters, bias: list[str]) -> str:
    codes = step.use(x)
    if len(x.shape) != 2:
        codes = step.reshape(codes, [None, folded.codes.shape[1]])
    real = step.writer.dequantize(codes, grid, step.hint)
    return step.node("Gemm", real, _weight(step, folded, _LINEAR, 1), *bias, transB=1)


def quantized_conv_packed(step: Step, x: Value, *args: Any) -> Value:
    """The same on a packed weight."""
    x_scale, x_zero_point, packed, size, *rest = args
    base, stride, _, dilation, _, groups = rest[8:14]
    weight = torch.ops.horizon.unpack_weight(packed, size, base, stride, dilation, groups)
    return quantized_conv(step, x, x_scale, x_zero_point, weight, *rest)
