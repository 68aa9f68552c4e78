"""Single-input layers besides the conv family: one description, a prepared and a converted form.

A description has `_float(x)` and `_integer(q, s, z, out_s, out_z)`. Prepared training runs the
first and quantizes its result; prepared eval and the converted stage run the second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from horizon_plugin import _carry
from horizon_plugin.nn import _family
from horizon_plugin.nn._layer import (
    HIGH_PRECISION,
    ConvertedLayer,
    PreparedLayer,
    adopt_hooks,
    wants_surrogate,
)
from horizon_plugin.quantization.fake_quantize import FakeQuantize


def pair(value: int | tuple[int, int]) -> list[int]:
    """Two entries: the value twice, or its own."""
    return [value, value] if isinstance(value, int) else [int(v) for v in value]


def affine_in_double(x: Tensor, factor: Tensor, offset: Tensor) -> Tensor:
    """``factor * x + offset`` per channel (dim 1), both fp64, in the dtype of `x`."""
    shape = [1, -1] + [1] * (x.dim() - 2)
    return (x.to(torch.float64) * factor.view(shape) + offset.view(shape)).to(x.dtype)


class PreparedUnary(PreparedLayer):
    """A float op whose result is fake-quantized; integer arithmetic in eval mode."""

    if TYPE_CHECKING:  # torch.jit would read annotations of attributes as types
        activation_post_process: FakeQuantize | None

    @classmethod
    def from_float(cls, source: nn.Module, qconfig: Any, path: str) -> nn.Module:
        """Take over `source` and give it an output quantizer."""
        self: Any = cls.__new__(cls)
        _family.adopt(self, source)
        adopt_hooks(self, source)
        self.init_layer(path)
        self._describe()
        self.activation_post_process = None
        if qconfig.activation is not None:
            quantizer = qconfig.activation()
            tensors = [*source.parameters(), *source.buffers()]
            if tensors:
                quantizer = quantizer.to(tensors[0].device)
            self.activation_post_process = quantizer.train(self.training)
        return self

    def _describe(self) -> None:
        pass

    def _scripted(self, x: Tensor) -> Tensor:
        if self.activation_post_process is not None:
            scale = self.activation_post_process.scale
            zero_point = (
                self.activation_post_process.zero_point - self.activation_post_process.quant_min
            )
            if self.script_quantized and self.activation_post_process.fake_quant_enabled:
                q = torch.ops.horizon.quantize(x, self.input_scale, self.input_zero_point)
                y = self._integer(q, self.input_scale, self.input_zero_point, scale, zero_point)
                return torch.ops.horizon.dequantize(y, scale, zero_point, x.dtype)
            return self.activation_post_process(self._float(x))
        return self._deployed(x)

    @torch.jit.unused
    def _eager(self, x: Tensor) -> Tensor:
        with torch._C.DisableTorchFunction():
            x = self.from_island(x, "input")
            x_scale, x_zero_point = self.operand_grid(x, "input")
            quantizer = self.activation_post_process
            try:
                if quantizer is None:
                    self.record_dtype(x)
                    y = self._float(x) if self.training else self._deployed(x)
                    return _carry.set_tag(y, ("lost", HIGH_PRECISION, self._path))
                integer = (
                    x_scale is not None
                    and not self.training
                    and quantizer.fake_quant_enabled
                    and not quantizer.moves()
                    and self._deployable()
                )
                if not integer:
                    return quantizer.quantize_and_tag(self._float(x), self._path)
                scale, zero_point = quantizer.scale.clone(), quantizer.stored_zero_point()
                q = torch.ops.horizon.quantize(x.detach(), x_scale, x_zero_point)
                q = self._integer(q, x_scale, x_zero_point, scale, zero_point)
                y = torch.ops.horizon.dequantize(q, scale, zero_point, x.dtype)
                if wants_surrogate((x, *self.parameters(recurse=False))):
                    y = torch.ops.horizon.straight_through(
                        y, quantizer.quantize(self._float(x), False)[0]
                    )
            except (ValueError, TypeError, RuntimeError, IndexError) as error:
                raise self.named(error) from None
            return _carry.set_tag(y, ("grid", scale, zero_point, 0, self._path))

    def _deployable(self) -> bool:
        return True

    def _deployed(self, x: Tensor) -> Tensor:
        """What the converted layer computes from real values, if its result is float."""
        return self._float(x)

    def forward(self, input: Tensor) -> Tensor:
        """Floats on a grid to floats on the output's grid."""
        if torch.jit.is_scripting():
            return self._scripted(input)
        else:
            return self._eager(input)


class ConvertedUnary(ConvertedLayer):
    """The same op on uint8 codes. State: output ``scale`` and stored ``zero_point``."""

    @classmethod
    def from_prepared(cls, source: Any) -> nn.Module:
        """The integer form, with the scale that prepared eval uses."""
        self: Any = cls.__new__(cls)
        _family.adopt(self, source)
        adopt_hooks(self, source)
        self.init_layer(source._path)
        self.take_records(source)
        self._modules.pop("activation_post_process", None)
        self.take_grid(source.activation_post_process)
        self._deploy()
        self.training = False
        return self

    def _deploy(self) -> None:
        pass

    def _run(self, x: Tensor, x_scale: Tensor, x_zero_point: Tensor) -> Tensor:
        if self.scale is not None:
            return self._integer(x, x_scale, x_zero_point, self.scale, self.zero_point)
        return self._float(
            torch.ops.horizon.dequantize(x, x_scale, x_zero_point, self.output_dtype)
        )

    @torch.jit.unused
    def _eager(self, x: Tensor) -> Tensor:
        with torch._C.DisableTorchFunction():
            x = self.from_island(x, "input")
            x_scale, x_zero_point = self.operand_codes(x, "input")
            try:
                y = self._run(x, x_scale, x_zero_point)
            except (ValueError, TypeError, RuntimeError, IndexError) as error:
                raise self.named(error) from None
            if self.scale is None:
                return y
            return _carry.set_tag(y, ("codes", self.scale, self.zero_point, 0, self._path))

    def forward(self, input: Tensor) -> Tensor:
        """uint8 codes to uint8 codes."""
        if torch.jit.is_scripting():
            x = self.scripted_codes(input, self.input_scale, self.input_zero_point)
            return self._run(x, self.input_scale, self.input_zero_point)
        else:
            return self._eager(input)


class UnaryOps:
    """Mixin: the two forms of a layer's arithmetic."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """What the layer mixed with this one has."""


class AvgPool2dOps(UnaryOps):
    """Average pooling: the sum of codes is exact, one rounding at the end."""

    def _describe(self) -> None:
        self.op_kernel = pair(self.kernel_size)
        self.op_stride = pair(self.stride)
        self.op_padding = pair(self.padding)

    def _float(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(
            x,
            self.kernel_size,
            self.stride,
            self.padding,
            self.ceil_mode,
            self.count_include_pad,
            self.divisor_override,
        )

    def _integer(self, q: Tensor, s: Tensor, z: Tensor, out_s: Tensor, out_z: Tensor) -> Tensor:
        return torch.ops.horizon.quantized_avg_pool2d(
            q,
            s,
            z,
            self.op_kernel,
            self.op_stride,
            self.op_padding,
            self.ceil_mode,
            self.count_include_pad,
            self.divisor_override,
            out_s,
            out_z,
        )


class AdaptiveAvgPool2dOps(UnaryOps):
    """Adaptive average pooling; None in the output size keeps the input's."""

    def _describe(self) -> None:
        size = self.output_size
        pair = (size, size) if isinstance(size, int) else tuple(size)
        self.op_size = [-1 if s is None else int(s) for s in pair]

    def _size_for(self, x: Tensor) -> list[int]:
        size: list[int] = []
        for i in range(2):
            size.append(x.size(x.dim() - 2 + i) if self.op_size[i] < 0 else self.op_size[i])
        return size

    def _float(self, x: Tensor) -> Tensor:
        return torch.ops.aten.adaptive_avg_pool2d(x, self._size_for(x))

    def _integer(self, q: Tensor, s: Tensor, z: Tensor, out_s: Tensor, out_z: Tensor) -> Tensor:
        return torch.ops.horizon.quantized_adaptive_avg_pool2d(
            q, s, z, self._size_for(q), out_s, out_z
        )


class ReLU6Ops(UnaryOps):
    """ReLU6 on its own: a grid of its own, so that 6 is representable."""

    def _float(self, x: Tensor) -> Tensor:
        return F.relu6(x)

    def _integer(self, q: Tensor, s: Tensor, z: Tensor, out_s: Tensor, out_z: Tensor) -> Tensor:
        return torch.ops.horizon.quantized_affine_scalar(q, s, z, 1.0, 0.0, out_s, out_z, 2)


class InterpolateOps(UnaryOps):
    """Bilinear interpolation, in float between two grids (the same code in every stage)."""

    def _float(self, x: Tensor) -> Tensor:
        return F.interpolate(x, self.size, self.scale_factor, self.mode, self.align_corners)

    def _integer(self, q: Tensor, s: Tensor, z: Tensor, out_s: Tensor, out_z: Tensor) -> Tensor:
        y = self._float(torch.ops.horizon.dequantize(q, s, z, None))
        return torch.ops.horizon.quantize(y, out_s, out_z)


class BatchNormOps(PreparedUnary):
    """Mixin: a batch norm on its own, an affine op on codes in eval mode.

    `bn_frozen` keeps its statistics fixed in training too.
    """

    def _describe(self) -> None:
        self.bn_frozen = False

    def _deployable(self) -> bool:
        return self.running_mean is not None

    def _float(self, x: Tensor) -> Tensor:
        factor = 0.0
        moves = self.training and not self.bn_frozen
        if moves and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                factor = 1.0 / float(self.num_batches_tracked)
        if self.momentum is not None:
            factor = self.momentum
        return F.batch_norm(
            x,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            moves or self.running_mean is None,
            factor,
            self.eps,
        )

    def _folded(self) -> tuple[Tensor, Tensor]:
        factor, offset = torch.ops.horizon.fold_batch_norm(
            None,
            self.weight,
            self.bias,
            self.running_mean,
            self.running_var,
            self.eps,
            self.num_features,
        )
        return factor.detach(), offset.detach()

    def _deployed(self, x: Tensor) -> Tensor:
        if self.running_mean is None:
            return self._float(x)
        factor, offset = self._folded()
        y = affine_in_double(x.detach(), factor, offset)
        if torch.jit.is_scripting():
            return y
        else:
            if wants_surrogate((x, *self.parameters())):
                y = torch.ops.horizon.straight_through(y, self._float(x))
            return y

    def _integer(self, q: Tensor, s: Tensor, z: Tensor, out_s: Tensor, out_z: Tensor) -> Tensor:
        factor, offset = self._folded()
        return torch.ops.horizon.quantized_affine(q, s, z, factor, offset, out_s, out_z, 0)


class PreparedBatchNorm1d(BatchNormOps, nn.BatchNorm1d):
    """A batch norm on its own, of ``[N, C]`` or ``[N, C, L]``, with an output quantizer."""


class PreparedBatchNorm2d(BatchNormOps, nn.BatchNorm2d):
    """A batch norm on its own, of ``[N, C, H, W]``, with an output quantizer."""


class ConvertedBatchNorm(ConvertedUnary, nn.Module):
    """A batch norm on its own, on codes. State: ``bn_scale``, ``bias`` fp64 per channel."""

    def _deploy(self) -> None:
        if self.running_mean is None:
            raise ValueError(
                f"convert: {self._path}: the batch norm has no running statistics "
                "(track_running_stats=False), so there is nothing to deploy"
            )
        with torch.no_grad():
            factor, offset = torch.ops.horizon.fold_batch_norm(
                None,
                self.weight,
                self.bias,
                self.running_mean,
                self.running_var,
                self.eps,
                self.num_features,
            )
        self._parameters.clear()
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            self._buffers.pop(name, None)
        self.register_buffer("bn_scale", factor)
        self.register_buffer("bias", offset)

    def _float(self, x: Tensor) -> Tensor:
        return affine_in_double(x, self.bn_scale, self.bias)

    def _integer(self, q: Tensor, s: Tensor, z: Tensor, out_s: Tensor, out_z: Tensor) -> Tensor:
        return torch.ops.horizon.quantized_affine(
            q, s, z, self.bn_scale, self.bias, out_s, out_z, 0
        )


class ConvertedBatchNorm1d(ConvertedBatchNorm):
    """`nn.BatchNorm1d` on codes."""


class ConvertedBatchNorm2d(ConvertedBatchNorm):
    """`nn.BatchNorm2d` on codes."""


class PreparedAvgPool2d(AvgPool2dOps, PreparedUnary, nn.AvgPool2d):
    """Average pooling with an output quantizer."""


class PreparedAdaptiveAvgPool2d(AdaptiveAvgPool2dOps, PreparedUnary, nn.AdaptiveAvgPool2d):
    """Adaptive average pooling with an output quantizer."""


class PreparedReLU6(ReLU6Ops, PreparedUnary, nn.Module):
    """ReLU6 with an output quantizer."""


class PreparedUpsample(InterpolateOps, PreparedUnary, nn.Upsample):
    """Bilinear upsampling with an output quantizer."""


class ConvertedAvgPool2d(AvgPool2dOps, ConvertedUnary, nn.AvgPool2d):
    """Average pooling on codes."""


class ConvertedAdaptiveAvgPool2d(AdaptiveAvgPool2dOps, ConvertedUnary, nn.AdaptiveAvgPool2d):
    """Adaptive average pooling on codes."""


class ConvertedReLU6(ReLU6Ops, ConvertedUnary, nn.Module):
    """ReLU6 on codes."""


class ConvertedUpsample(InterpolateOps, ConvertedUnary, nn.Upsample):
    """Bilinear upsampling from codes to codes."""
