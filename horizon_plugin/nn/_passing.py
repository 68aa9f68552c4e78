"""Layers that keep the grid of their input but need a form of their own on codes."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from horizon_plugin import _carry
from horizon_plugin.nn import _family
from horizon_plugin.nn._layer import ConvertedLayer, adopt_hooks
from horizon_plugin.nn._unary import pair


class ConvertedPassing(ConvertedLayer, nn.Module):
    """An op on codes that keeps their grid, but needs the zero point."""

    @classmethod
    def from_float(cls, source: nn.Module, path: str) -> nn.Module:
        """The form of `source` that reads the zero point."""
        self: Any = cls.__new__(cls)
        _family.adopt(self, source)
        adopt_hooks(self, source)
        self.init_layer(path)
        self._zero_points = {}
        self.describe()
        self.training = False
        return self

    def needs_one_scale(self) -> bool:
        """Only where its callers' zero points differ."""
        return len({int(z) for z in self._zero_points.values()}) > 1

    def describe(self) -> None:
        """Derive what `_run` needs from the attributes of the float module."""

    def _run(self, x: Tensor, zero_point: Tensor) -> Tensor:
        raise NotImplementedError

    @torch.jit.unused
    def _eager(self, x: Tensor) -> Tensor:
        with torch._C.DisableTorchFunction():
            tag = _carry.get_tag(x)
            if tag is None or not _carry.is_quantized(tag):
                self.record("input", ("off", self._path))
                y = self._plain(x)
                # The result of a float island still may meet a layer that quantizes it.
                return y if tag is None else _carry.set_tag(y, tag)
            scale, zero_point = self.operand_codes(x, "input")
            if not torch.compiler.is_compiling():  # export forbids attributes that change
                self._zero_points.setdefault(tag[4], zero_point)
            y = self._run(x, zero_point)
            return _carry.set_tag(y, ("codes", scale, zero_point, _carry.version_of(y), tag[4]))

    def _plain(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, input: Tensor) -> Tensor:
        """uint8 codes to codes on the same grid."""
        if torch.jit.is_scripting():
            if input.is_floating_point():
                return self._plain(input)
            return self._run(input, self.input_zero_point)
        else:
            return self._eager(input)


class ConvertedReLU(ConvertedPassing):
    """ReLU on codes: the zero point is the lower bound. Float input is rectified as usual."""

    def _run(self, x: Tensor, zero_point: Tensor) -> Tensor:
        y = torch.maximum(x, zero_point.to(torch.uint8))
        if self.inplace:
            return x.copy_(y)
        return y

    def _plain(self, x: Tensor) -> Tensor:
        return F.relu(x, inplace=self.inplace)


class _ConvertedMax(ConvertedPassing):
    def needs_one_scale(self) -> bool:
        """Never: a maximum needs no zero point."""
        return False

    def needs_input_grid(self) -> bool:
        """Never, likewise: a script may be made before the first forward."""
        return False


class ConvertedMaxPool2d(_ConvertedMax):
    """Max pooling on codes."""

    def describe(self) -> None:
        """The op's arguments as lists."""
        self.op_kernel = pair(self.kernel_size)
        self.op_stride = pair(self.stride)
        self.op_padding = pair(self.padding)
        self.op_dilation = pair(self.dilation)

    def _run(self, x: Tensor, zero_point: Tensor) -> Tensor:
        return torch.ops.horizon.quantized_max_pool2d(
            x, self.op_kernel, self.op_stride, self.op_padding, self.op_dilation, self.ceil_mode
        )

    def _plain(self, x: Tensor) -> Tensor:
        return F.max_pool2d(
            x, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode
        )


class ConvertedAdaptiveMaxPool2d(_ConvertedMax):
    """Adaptive max pooling on codes, which floats hold exactly."""

    def _run(self, x: Tensor, zero_point: Tensor) -> Tensor:
        return F.adaptive_max_pool2d(x.to(torch.float32), self.output_size).to(torch.uint8)

    def _plain(self, x: Tensor) -> Tensor:
        return F.adaptive_max_pool2d(x, self.output_size)
