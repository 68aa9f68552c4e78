"""A plain reference of the integer arithmetic (docs/numerics.md): sums in float64, which is exact
below 2^53, and the epilogue in numpy's fp32, one rounding at a time."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional as F

CONV2D, CONV_TRANSPOSE2D, LINEAR = 0, 1, 2
NONE, RELU, RELU6 = 0, 1, 2
f32 = np.float32


def fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a * b + c in fp32 with one rounding.

    The product of two fp32 numbers is exact in double. Their sum is rounded to odd there, so that
    the second rounding, to fp32, cannot be a double one.
    """
    product = np.asarray(a, np.float64) * np.asarray(b, np.float64)
    product, c = np.broadcast_arrays(product, np.asarray(c, np.float64))
    total = product + c
    part = total - product
    error = (product - (total - part)) + (c - part)
    bits = total.copy().view(np.int64)
    away = (error > 0) == (total > 0)
    fix = (error != 0) & (bits & 1 == 0)
    bits += np.where(fix, np.where(away, 1, -1), 0)
    return bits.view(np.float64).astype(f32)


def activate(v: np.ndarray, activation: int, six: float) -> np.ndarray:
    if activation != NONE:
        v = np.maximum(v, f32(0))
    if activation == RELU6:
        v = np.minimum(v, f32(six))
    return v.astype(f32)


def to_codes(v: np.ndarray, zero_point: int) -> np.ndarray:
    assert v.dtype == f32
    total = v + f32(zero_point)
    assert total.dtype == f32
    return np.clip(np.rint(total), 0, 255).astype(np.uint8)


def finish(v: np.ndarray, activation: int, scale: float, zero_point: int) -> np.ndarray:
    return to_codes(activate(v, activation, float(f32(6.0 / scale))), zero_point)


def centred(q: torch.Tensor, zero_point: int) -> np.ndarray:
    return q.numpy().astype(np.int64) - zero_point


def scalar(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float32)


def point(value: int) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.int32)


@dataclass
class Group:
    """The arguments of one quantized_conv call."""

    x: torch.Tensor
    w: torch.Tensor
    x_scale: float = 0.0390625
    x_zero: int = 128
    w_scale: torch.Tensor | None = None
    factor: torch.Tensor | None = None
    offset: torch.Tensor | None = None
    skip: torch.Tensor | None = None
    skip_scale: float = 0.05
    skip_zero: int = 128
    y_scale: float | None = 0.0625
    y_zero: int = 128
    base: int = CONV2D
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, ...] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    output_padding: tuple[int, int] = (0, 0)
    groups: int = 1
    activation: int = NONE

    def __post_init__(self) -> None:
        n = self.out_channels
        generator = torch.Generator().manual_seed(n)
        if self.w_scale is None:
            self.w_scale = torch.rand(n, generator=generator) * 2e-3 + 1e-4
        if self.factor is None:
            self.factor = torch.randn(n, generator=generator, dtype=torch.float64)
        if self.offset is None:
            self.offset = torch.randn(n, generator=generator, dtype=torch.float64)
        for name in ("x_scale", "skip_scale", "y_scale"):
            value = getattr(self, name)
            if value is not None:
                setattr(self, name, float(f32(value)))

    @property
    def out_channels(self) -> int:
        return self.w.shape[1] * self.groups if self.base == CONV_TRANSPOSE2D else self.w.shape[0]

    def arguments(self) -> tuple[object, ...]:
        skip = self.skip is not None
        quantized = self.y_scale is not None
        return (
            self.x,
            scalar(self.x_scale),
            point(self.x_zero),
            self.w,
            self.w_scale,
            self.factor,
            self.offset,
            self.skip,
            scalar(self.skip_scale) if skip else None,
            point(self.skip_zero) if skip else None,
            scalar(self.y_scale) if quantized else None,
            point(self.y_zero) if quantized else None,
            self.base,
            list(self.stride),
            list(self.padding),
            list(self.dilation),
            list(self.output_padding),
            self.groups,
            self.activation,
        )

    def run(self) -> torch.Tensor:
        return torch.ops.horizon.quantized_conv(*self.arguments())

    def sums(self) -> np.ndarray:
        """The exact accumulator, as int64."""
        x = self.x.contiguous().double() - self.x_zero
        w = self.w.contiguous().double()
        if self.base == LINEAR:
            acc = F.linear(x, w)
        elif self.base == CONV2D:
            if len(self.padding) == 4:
                top, left, bottom, right = self.padding
                x = F.pad(x, (left, right, top, bottom))
                acc = F.conv2d(x, w, None, self.stride, 0, self.dilation, self.groups)
            else:
                acc = F.conv2d(x, w, None, self.stride, self.padding, self.dilation, self.groups)
        else:
            acc = F.conv_transpose2d(
                x,
                w,
                None,
                self.stride,
                self.padding,
                self.output_padding,
                self.groups,
                self.dilation,
            )
        exact = acc.numpy().astype(np.int64)
        assert np.array_equal(exact, acc.numpy())
        return exact

    def constants(self) -> tuple[np.ndarray, np.ndarray]:
        s_w = self.w_scale.numpy().astype(np.float64)
        y_scale = 1.0 if self.y_scale is None else self.y_scale
        multiplier = ((self.x_scale * s_w) * self.factor.numpy()) / y_scale
        offset = self.offset.numpy() / y_scale
        return multiplier.astype(f32), offset.astype(f32)

    def expected(self) -> np.ndarray:
        """Steps 1 to 5 of the arithmetic; fp32 without an output quantizer."""
        acc = self.sums()
        multiplier, offset = self.constants()
        if self.base != LINEAR:
            multiplier, offset = multiplier[:, None, None], offset[:, None, None]
        v = acc.astype(f32) * multiplier
        v = v + offset
        assert v.dtype == f32
        if self.skip is not None:
            y_scale = 1.0 if self.y_scale is None else self.y_scale
            ratio = f32(self.skip_scale / y_scale)
            v = fma(centred(self.skip, self.skip_zero).astype(f32), ratio, v)
        if self.y_scale is None:
            return activate(v, self.activation, 6.0)
        return finish(v, self.activation, self.y_scale, self.y_zero)


def codes(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


def weights(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randint(-127, 128, shape, dtype=torch.int8, generator=generator)


def spread(group: Group, codes_per_sigma: float = 60.0) -> Group:
    """Chooses weight scales so that the outputs use the whole range of codes."""
    acc = group.sums()
    sigma = max(float(acc.std()), 1.0)
    n = group.out_channels
    generator = torch.Generator().manual_seed(n)
    y_scale = 1.0 if group.y_scale is None else group.y_scale
    target = codes_per_sigma * y_scale / (sigma * group.x_scale)
    group.w_scale = ((torch.rand(n, generator=generator) + 0.5) * target).float()
    group.factor = torch.randn(n, generator=generator, dtype=torch.float64)
    group.offset = torch.randn(n, generator=generator, dtype=torch.float64) * 20 * y_scale
    return group


def random_group(seed: int) -> Group:
    """A convolution group with everything drawn: base, sizes, layout, grids, skip."""
    draw = random.Random(seed)
    base = draw.choice([CONV2D, CONV2D, CONV_TRANSPOSE2D, LINEAR])
    grids = {
        "activation": draw.choice([NONE, RELU, RELU6]),
        "y_scale": draw.choice([None, 0.0625, 0.02]),
        "x_zero": draw.choice([128, 0, 77, 255]),
        "y_zero": draw.choice([128, 0, 33]),
    }
    if base == LINEAR:
        inputs = draw.choice([1, 3, 7, 16, 17, 100])
        outputs = draw.choice([1, 3, 10, 17, 64, 70])
        lead = draw.choice([(5,), (2, 3), (), (1,)])
        group = Group(
            codes(*lead, inputs, seed=seed), weights(outputs, inputs, seed=seed), base=base, **grids
        )
    else:
        kind = draw.choice(["dense", "dense", "groups", "depthwise", "multiplier"])
        ins, outs = draw.choice([1, 2, 3, 4, 8, 17]), draw.choice([1, 2, 3, 8, 17, 20])
        groups = 1 if kind == "dense" else draw.choice([2, 4, 5])
        if kind == "depthwise":
            groups, ins, outs = draw.choice([3, 16, 17, 33, 64, 70]), 1, 1
        elif kind == "multiplier":
            groups, ins, outs = draw.choice([3, 16]), 1, draw.choice([2, 3])
        kernel = (draw.choice([1, 2, 3, 4]), draw.choice([1, 2, 3, 5]))
        stride = (draw.choice([1, 2, 3]), draw.choice([1, 2, 5]))
        dilation = (draw.choice([1, 2]), draw.choice([1, 1, 3]))
        span = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
        size = (span[0] + draw.choice([0, 3, 4]), span[1] + draw.choice([0, 2, 8]))
        output_padding = (0, 0)
        if base == CONV2D:
            padding = draw.choice([(0, 0), (1, 2), (2, 0, 1, 3), (0, 1, 0, 0)])
            w = weights(groups * outs, ins, *kernel, seed=seed)
        else:
            padding = draw.choice([(0, 0), (1, 0), (1, 1)])
            if min(size) * min(stride) < 4:
                padding = (0, 0)
            output_padding = (min(1, max(stride[0], dilation[0]) - 1), 0)
            w = weights(groups * ins, outs, *kernel, seed=seed)
        x = codes(draw.choice([1, 2]), groups * ins, *size, seed=seed)
        if draw.random() < 0.5:
            x = x.contiguous(memory_format=torch.channels_last)
        if draw.random() < 0.1:
            x = x[0]
        group = Group(
            x,
            w,
            base=base,
            stride=stride,
            padding=padding,
            dilation=dilation,
            output_padding=output_padding,
            groups=groups,
            **grids,
        )
    spread(group)
    if draw.random() < 0.4:
        shape = [1 if draw.random() < 0.3 else n for n in group.sums().shape]
        group.skip = codes(*shape[draw.choice([0, 0, 1]) :], seed=seed + 1)
        group.skip_zero = draw.choice([0, 128, 5])
    return group
