"""Bodies of the prepared stage: conv / conv-transpose / linear groups in training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from horizon_plugin import _carry
from horizon_plugin.nn import _family
from horizon_plugin.nn._add import AddMethods
from horizon_plugin.nn._layer import HIGH_PRECISION, PreparedLayer, adopt_hooks
from horizon_plugin.quantization.fake_quantize import FakeQuantize, WeightFakeQuantize


def op_padding(module: Any) -> tuple[list[int], bool]:
    """The op's padding argument, and whether the input is padded beforehand (non-zero modes).

    ``padding='same'`` of an even kernel is asymmetric: top, left, bottom, right.
    """
    if isinstance(module, nn.Linear):
        return [0, 0], False
    if module.padding_mode != "zeros":
        return [0, 0], True
    if isinstance(module.padding, str):
        if module.padding == "valid":
            return [0, 0], False
        left, right, top, bottom = module._reversed_padding_repeated_twice
        return [top, left, bottom, right], False
    return [int(p) for p in module.padding], False


def describe_base(target: Any) -> None:
    """Set the plain attributes that every group op call takes."""
    target.op_padding, target.pads_first = op_padding(target)
    target.pad_mode = target.padding_mode if target.pads_first else "constant"
    target.pad_amounts = (
        list(target._reversed_padding_repeated_twice) if target.pads_first else [0, 0, 0, 0]
    )
    linear = isinstance(target, nn.Linear)
    target.op_stride = [1, 1] if linear else list(target.stride)
    target.op_dilation = [1, 1] if linear else list(target.dilation)
    target.op_output_padding = (
        list(target.output_padding) if isinstance(target, nn.ConvTranspose2d) else [0, 0]
    )
    target.op_groups = 1 if linear else target.groups


class PreparedBody(PreparedLayer):
    """A fused group whose weight, and usually output, is fake-quantized.

    Attributes:
        bn: the user's batch norm module or None; `bn_frozen` keeps it in eval mode.
        activation_post_process: the output's `FakeQuantize`, or None (high-precision output).
        weight_fake_quant: the weight's quantizer.
    """

    if TYPE_CHECKING:  # torch.jit would read annotations of attributes as types
        variant: ClassVar[_family.Variant]
        has_bn: bool
        has_add: bool
        activation: int
        base: int
        conv_operand: int
        activation_post_process: FakeQuantize | None
        weight_fake_quant: WeightFakeQuantize

    __constants__ = ("has_bn", "has_add", "activation", "base")

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Joins the constants of the base layer and of the fused part."""
        super().__init_subclass__(**kwargs)
        names = {name for base in cls.__mro__ for name in base.__dict__.get("__constants__", ())}
        cls.__constants__ = tuple(sorted(names))

    @classmethod
    def from_float(cls, source: nn.Module, qconfig: Any, path: str) -> nn.Module:
        """Take over `source`: same parameter objects, hooks, batch norm."""
        self: Any = cls.__new__(cls)
        _family.adopt(self, source)
        adopt_hooks(self, source)
        if not cls.has_bn:
            self.bn = None
            self.bn_frozen = False
        self.init_layer(path)
        describe_base(self)
        self.conv_operand = getattr(source, "conv_operand", 0)
        device = self.weight.device
        if qconfig.activation is None:
            self.activation_post_process = None
        else:
            self.activation_post_process = qconfig.activation().to(device)
            self.activation_post_process.train(self.training)
        weight = qconfig.weight()
        weight.base, weight.groups = cls.base, self.op_groups
        self.weight_fake_quant = weight.to(device)
        return self

    def train(self, mode: bool = True):  # type: ignore[no-untyped-def]
        """As `nn.Module.train`, except that a frozen batch norm stays in eval mode."""
        super().train(mode)  # type: ignore[misc]
        if self.bn is not None and self.bn_frozen:
            self.bn.eval()
        return self

    def _group(
        self,
        x: Tensor,
        x_scale: Tensor | None,
        x_zero_point: Tensor | None,
        skip: Tensor | None,
        skip_scale: Tensor | None,
        skip_zero_point: Tensor | None,
        output_padding: list[int],
        activation: int,
        doubled: bool,
        integer: bool,
        observe: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        gamma: Tensor | None = None
        beta: Tensor | None = None
        mean: Tensor | None = None
        var: Tensor | None = None
        count: Tensor | None = None
        momentum: float | None = None
        eps = 1e-5
        batch_stats = False
        if self.bn is not None:
            gamma, beta = self.bn.weight, self.bn.bias
            mean, var, count = (
                self.bn.running_mean,
                self.bn.running_var,
                self.bn.num_batches_tracked,
            )
            momentum, eps = self.bn.momentum, self.bn.eps
            batch_stats = self.bn.training or mean is None
        weight, bias = self.weight, self.bias
        if doubled:
            # add(z, z): powers of two are exact, so the factor moves to where z gets its scale.
            if self.bn is None:
                weight = weight * 2.0
                bias = bias * 2.0 if bias is not None else bias
            else:
                if gamma is None:
                    channels = self.weight.size(1) * self.op_groups
                    if self.base != 1:
                        channels = self.weight.size(0)
                    gamma = torch.ones(channels, dtype=self.weight.dtype, device=self.weight.device)
                gamma = gamma * 2.0
                beta = beta * 2.0 if beta is not None else beta
        min_val: Tensor | None = None
        max_val: Tensor | None = None
        observed: Tensor | None = None
        scale: Tensor | None = None
        zero_point: Tensor | None = None
        preset, observer, constant = 0, 2, 0.01
        fake_quantize, skip_nonfinite = False, False
        if self.activation_post_process is not None:
            min_val = self.activation_post_process.min_val
            max_val = self.activation_post_process.max_val
            observed = self.activation_post_process.observed
            scale = self.activation_post_process.scale
            zero_point = self.activation_post_process.zero_point
            preset = self.activation_post_process.preset
            observer = self.activation_post_process.observer
            constant = self.activation_post_process.averaging_constant
            fake_quantize = self.activation_post_process.fake_quant_enabled
            skip_nonfinite = self.activation_post_process.skip_nonfinite
        if self.pads_first:
            x = F.pad(x, self.pad_amounts, mode=self.pad_mode)
        return torch.ops.horizon.fused(
            x,
            x_scale,
            x_zero_point,
            weight,
            bias,
            gamma,
            beta,
            mean,
            var,
            count,
            skip,
            skip_scale,
            skip_zero_point,
            min_val,
            max_val,
            observed,
            scale,
            zero_point,
            self.base,
            self.op_stride,
            self.op_padding,
            self.op_dilation,
            output_padding,
            self.op_groups,
            self.bn is not None,
            batch_stats,
            momentum,
            eps,
            activation,
            self.weight_fake_quant.fake_quant_enabled,
            integer,
            preset,
            observer,
            constant,
            observe,
            fake_quantize,
            skip_nonfinite,
        )

    def _scripted(
        self,
        x: Tensor,
        skip: Tensor | None,
        output_padding: list[int],
        activation: int,
        doubled: bool,
    ) -> Tensor:
        if self.script_quantized:
            skip_scale: Tensor | None = None
            skip_zero_point: Tensor | None = None
            if skip is not None:
                skip_scale, skip_zero_point = self.skip_scale, self.skip_zero_point
            return self._group(
                x,
                self.input_scale,
                self.input_zero_point,
                skip,
                skip_scale,
                skip_zero_point,
                output_padding,
                activation,
                doubled,
                self.weight_fake_quant.fake_quant_enabled,
                False,
            )[0]
        return self._group(
            x, None, None, skip, None, None, output_padding, activation, doubled, False, False
        )[0]

    @torch.jit.unused
    def _eager(
        self,
        x: Tensor,
        skip: Tensor | None,
        output_padding: list[int],
        activation: int,
        doubled: bool,
    ) -> Tensor:
        with torch._C.DisableTorchFunction():
            x = self.from_island(x, "input")
            x_scale, x_zero_point = self.operand_grid(x, "input")
            skip_scale = skip_zero_point = None
            if skip is not None:
                skip = self.from_island(skip, "skip")
                skip_scale, skip_zero_point = self.operand_grid(skip, "skip")
            quantizer = self.activation_post_process
            weight_quantized = self.weight_fake_quant.fake_quant_enabled
            integer = (
                weight_quantized
                and not self.training
                and x_scale is not None
                and (skip is None or skip_scale is not None)
                and (quantizer is None or quantizer.fake_quant_enabled)
                # Statistics of the batch itself cannot be deployed: convert refuses them.
                and (self.bn is None or self.bn.running_mean is not None)
            )
            observe = quantizer is not None and quantizer.moves()
            seen = -1 if quantizer is None else quantizer.watch(observe)
            try:
                y, scale, zero_point = self._group(
                    x,
                    x_scale,
                    x_zero_point,
                    skip,
                    skip_scale,
                    skip_zero_point,
                    output_padding,
                    activation,
                    doubled,
                    integer and not observe,
                    observe,
                )
            except (ValueError, TypeError, RuntimeError, IndexError) as error:
                raise self.named(error) from None
            if quantizer is None:
                if not weight_quantized:
                    return _carry.set_tag(y, ("off", self._path))
                return _carry.set_tag(y, ("lost", HIGH_PRECISION, self._path))
            quantizer.warn_if_skipped(y, seen, self._path)
            if quantizer.fake_quant_enabled:
                return _carry.set_tag(y, ("grid", scale, zero_point, 0, self._path))
            return _carry.set_tag(y, ("off", self._path))

    def extra_repr(self) -> str:
        """Base arguments."""
        frozen = ", bn_frozen=True" if self.bn_frozen else ""
        return super().extra_repr() + frozen  # type: ignore[misc]


class PreparedAddBody(AddMethods, PreparedBody):
    """Groups that end in an add: they stand in the FloatFunctional's place."""


class PreparedConv2d(PreparedBody, nn.Conv2d):  # type: ignore[misc]
    """Prepared conv2d groups without an add."""

    def forward(self, input: Tensor) -> Tensor:
        """``[N, C, H, W]`` or ``[C, H, W]`` floats on a grid to the same."""
        if torch.jit.is_scripting():
            return self._scripted(input, None, self.op_output_padding, self.activation, False)
        else:
            return self._eager(input, None, self.op_output_padding, self.activation, False)


class PreparedLinear(PreparedBody, nn.Linear):  # type: ignore[misc]
    """Prepared linear groups without an add."""

    def forward(self, input: Tensor) -> Tensor:
        """``[*, in_features]`` floats on a grid to ``[*, out_features]``."""
        if torch.jit.is_scripting():
            return self._scripted(input, None, self.op_output_padding, self.activation, False)
        else:
            return self._eager(input, None, self.op_output_padding, self.activation, False)


class _Transposed(nn.ConvTranspose2d):
    def padding_for(self, input: Tensor, output_size: list[int]) -> list[int]:
        """The output padding that gives `output_size`."""
        return self._output_padding(
            input,
            output_size,
            self.op_stride,  # type: ignore[arg-type]
            self.op_padding,  # type: ignore[arg-type]
            self.kernel_size,  # type: ignore[arg-type]
            2,
            self.op_dilation,  # type: ignore[arg-type]
        )


class PreparedConvTranspose2d(PreparedBody, _Transposed):  # type: ignore[misc]
    """Prepared conv_transpose2d groups without an add."""

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        """As `nn.ConvTranspose2d.forward`, on a grid."""
        padding = self.op_output_padding
        if output_size is not None:
            padding = self.padding_for(input, output_size)
        if torch.jit.is_scripting():
            return self._scripted(input, None, padding, self.activation, False)
        else:
            return self._eager(input, None, padding, self.activation, False)


class PreparedConv2dAdd(PreparedAddBody, nn.Conv2d):  # type: ignore[misc]
    """Prepared conv2d groups with an add."""


class PreparedConvTranspose2dAdd(PreparedAddBody, _Transposed):  # type: ignore[misc]
    """Prepared conv_transpose2d groups with an add."""

    takes_output_size = True


class PreparedLinearAdd(PreparedAddBody, nn.Linear):  # type: ignore[misc]
    """Prepared linear groups with an add."""


BODIES = {
    (_family.BASE_CONV2D, False): PreparedConv2d,
    (_family.BASE_CONV2D, True): PreparedConv2dAdd,
    (_family.BASE_CONV_TRANSPOSE2D, False): PreparedConvTranspose2d,
    (_family.BASE_CONV_TRANSPOSE2D, True): PreparedConvTranspose2dAdd,
    (_family.BASE_LINEAR, False): PreparedLinear,
    (_family.BASE_LINEAR, True): PreparedLinearAdd,
}
