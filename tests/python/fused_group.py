"""A fused group for tests: its tensors, the operator's call, and the plain chain of torch ops."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F

CONV, TRANSPOSED, LINEAR = 0, 1, 2
NONE, RELU, RELU6 = 0, 1, 2
HORIZON, TENSORRT, X86 = 0, 1, 2
BASE_NAMES = {CONV: "conv2d", TRANSPOSED: "conv_transpose2d", LINEAR: "linear"}
ACT_NAMES = {NONE: "", RELU: "relu", RELU6: "relu6"}


@dataclass
class Quantizer:
    """The five state tensors of an output's quantizer and its settings."""

    preset: int = HORIZON
    observer: int = 0
    averaging_constant: float = 0.01
    observe: bool = True
    fake_quantize: bool = True
    skip_nonfinite: bool = False
    min_val: torch.Tensor = field(default_factory=lambda: torch.zeros(()))
    max_val: torch.Tensor = field(default_factory=lambda: torch.zeros(()))
    observed: torch.Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.int64))
    scale: torch.Tensor = field(default_factory=lambda: torch.ones(()))
    zero_point: torch.Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.int32))

    @property
    def state(self) -> dict[str, torch.Tensor]:
        names = ("min_val", "max_val", "observed", "scale", "zero_point")
        return {name: getattr(self, name) for name in names}

    @property
    def range(self) -> tuple[int, int]:
        return (0, 255) if self.preset == X86 else (-128, 127)


@dataclass
class Group:
    """What a group computes; the tensors live in a `dict` made by `tensors`."""

    base: int = CONV
    bn: bool = True
    add: bool = False
    act: int = RELU
    bias: bool = False
    train: bool = True
    channels: tuple[int, int] = (4, 6)
    kernel: tuple[int, int] = (3, 3)
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, ...] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    output_padding: tuple[int, int] = (0, 0)
    groups: int = 1
    image: tuple[int, int] = (7, 6)
    batch: int = 3
    dtype: torch.dtype = torch.float32
    channels_last: bool = False
    affine: bool = True
    running: bool = True
    momentum: float | None = 0.1
    eps: float = 1e-5

    def __str__(self) -> str:
        parts = [BASE_NAMES[self.base], "bn" if self.bn else "", "add" if self.add else ""]
        return "-".join(p for p in [*parts, ACT_NAMES[self.act]] if p)

    def but(self, **changes: Any) -> Group:
        return replace(self, **changes)

    def laid_out(self, x: torch.Tensor) -> torch.Tensor:
        return x.contiguous(memory_format=torch.channels_last) if self.channels_last else x

    def tensors(self, seed: int = 0) -> dict[str, torch.Tensor | None]:
        """Random tensors; no pre-activation lies near a kink except by chance."""
        generator = torch.Generator().manual_seed(seed)

        def normal(*size: int, mean: float = 0.0, std: float = 1.0) -> torch.Tensor:
            x = torch.randn(*size, generator=generator, dtype=torch.float64)
            return (x * std + mean).to(self.dtype)

        ins, outs = self.channels
        linear = self.base == LINEAR
        weight_size = {
            CONV: (outs, ins // self.groups, *self.kernel),
            TRANSPOSED: (ins, outs // self.groups, *self.kernel),
            LINEAR: (outs, ins),
        }[self.base]
        fan = weight_size[1] * (1 if linear else self.kernel[0] * self.kernel[1])
        shape = (self.batch, ins) if linear else (self.batch, ins, *self.image)
        x = normal(*shape, mean=0.5)
        weight = normal(*weight_size, std=fan**-0.5)
        t: dict[str, torch.Tensor | None] = {
            "input": x if linear else self.laid_out(x),
            "weight": weight,
            "bias": normal(outs) if self.bias else None,
            "bn_weight": normal(outs) + 0.2 if self.bn and self.affine else None,
            "bn_bias": normal(outs) if self.bn and self.affine else None,
            "running_mean": normal(outs) if self.bn and self.running else None,
            "running_var": normal(outs).abs() + 0.5 if self.bn and self.running else None,
            "num_batches_tracked": torch.tensor(4) if self.bn and self.running else None,
            "skip": None,
        }
        if self.add:
            with torch.no_grad():
                z = self.convolution(x, weight, None)
            skip = normal(*z.shape)
            t["skip"] = skip if linear else self.laid_out(skip)
        return t

    def convolution(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        if self.base == LINEAR:
            return F.linear(x, weight, bias)
        if self.base == TRANSPOSED:
            return F.conv_transpose2d(
                x,
                weight,
                bias,
                self.stride,
                self.padding[:2],
                self.output_padding,
                self.groups,
                self.dilation,
            )
        padding = self.padding
        if len(padding) == 4:
            top, left, bottom, right = padding
            x, padding = F.pad(x, (left, right, top, bottom)), (0, 0)
        return F.conv2d(x, weight, bias, self.stride, padding, self.dilation, self.groups)

    def normalized(self, z: torch.Tensor, t: dict[str, torch.Tensor | None]) -> torch.Tensor:
        """As nn.BatchNorm2d does, the counter included."""
        if not self.bn:
            return z
        stats = self.train or not self.running
        factor = 0.0 if self.momentum is None else self.momentum
        if self.train and t["num_batches_tracked"] is not None:
            t["num_batches_tracked"].add_(1)
            if self.momentum is None:
                factor = 1.0 / float(t["num_batches_tracked"])
        use_running = not self.train or self.running
        return F.batch_norm(
            z,
            t["running_mean"] if use_running else None,
            t["running_var"] if use_running else None,
            t["bn_weight"],
            t["bn_bias"],
            stats,
            factor,
            self.eps,
        )

    def chain(self, t: dict[str, torch.Tensor | None]) -> torch.Tensor:
        """The float group as separate torch ops."""
        y = self.normalized(self.convolution(t["input"], t["weight"], t["bias"]), t)
        if t["skip"] is not None:
            y = y + t["skip"]
        return self.activated(y)

    def activated(self, y: torch.Tensor) -> torch.Tensor:
        return {NONE: lambda v: v, RELU: F.relu, RELU6: F.relu6}[self.act](y)

    def fused(
        self,
        t: dict[str, torch.Tensor | None],
        quantizer: Quantizer | None = None,
        *,
        quantize_weight: bool = False,
        integer: bool = False,
        **changes: Any,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """One call of the operator."""
        arguments = self.arguments(
            t, quantizer, quantize_weight=quantize_weight, integer=integer, **changes
        )
        return torch.ops.horizon.fused(**arguments)

    def arguments(
        self,
        t: dict[str, torch.Tensor | None],
        quantizer: Quantizer | None = None,
        *,
        quantize_weight: bool = False,
        integer: bool = False,
        **changes: Any,
    ) -> dict[str, Any]:
        """The operator's arguments, in the order of its schema."""
        q = quantizer or Quantizer(observe=False, fake_quantize=False)
        state = q.state if quantizer is not None else dict.fromkeys(q.state)
        arguments = {
            "input": t["input"],
            "input_scale": t.get("input_scale"),
            "input_zero_point": t.get("input_zero_point"),
            "weight": t["weight"],
            "bias": t["bias"],
            "bn_weight": t["bn_weight"],
            "bn_bias": t["bn_bias"],
            "running_mean": t["running_mean"],
            "running_var": t["running_var"],
            "num_batches_tracked": t["num_batches_tracked"],
            "skip": t["skip"],
            "skip_scale": t.get("skip_scale"),
            "skip_zero_point": t.get("skip_zero_point"),
            **state,
            "base": self.base,
            "stride": list(self.stride),
            "padding": list(self.padding),
            "dilation": list(self.dilation),
            "output_padding": list(self.output_padding),
            "groups": self.groups,
            "batch_norm": self.bn,
            "batch_stats": self.bn and (self.train or not self.running),
            "momentum": self.momentum,
            "eps": self.eps,
            "activation": self.act,
            "quantize_weight": quantize_weight,
            "integer": integer,
            "preset": q.preset,
            "observer": q.observer,
            "averaging_constant": q.averaging_constant,
            "observe": q.observe,
            "fake_quantize": q.fake_quantize,
            "skip_nonfinite": q.skip_nonfinite,
        }
        return {**arguments, **changes}


DIFFERENTIABLE = ("input", "weight", "bias", "bn_weight", "bn_bias", "skip")


def copies(
    t: dict[str, torch.Tensor | None], requires_grad: bool = True
) -> dict[str, torch.Tensor | None]:
    """Independent copies with the same strides, leaves that require grad where they can."""
    out: dict[str, torch.Tensor | None] = {}
    for name, value in t.items():
        if value is None:
            out[name] = None
            continue
        copy = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
        copy.copy_(value.detach())
        out[name] = copy.requires_grad_(requires_grad and name in DIFFERENTIABLE)
    return out


def error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """|actual - expected| / |expected|, 0 for two zeros."""
    difference = (actual.double() - expected.double()).norm()
    scale = expected.double().norm()
    return 0.0 if difference == 0 else float(difference / scale.clamp_min(1e-30))


def on_grid(x: torch.Tensor, scale: float, zero_point: int, signed: bool = True) -> torch.Tensor:
    """x on the grid of `scale` and a *stored* zero point."""
    zero, low = (zero_point - 128, -128) if signed else (zero_point, 0)
    return torch.fake_quantize_per_tensor_affine(x, scale, zero, low, low + 255)
