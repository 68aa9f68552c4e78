"""The borders between float and quantized parts of a model."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from horizon_plugin import _carry
from horizon_plugin.nn._layer import (
    HIGH_PRECISION,
    ConvertedLayer,
    PreparedLayer,
    adopt_hooks,
)


class QuantStub(nn.Module):
    """Marks where float data enters the quantized part. The identity in a float model.

    Args:
        scale, zero_point: a fixed grid, for inputs whose range is known; otherwise observed.
        qconfig: overrides the inherited qconfig.
    """

    def __init__(
        self,
        scale: float | None = None,
        zero_point: int | None = None,
        qconfig: Any = None,
    ) -> None:
        super().__init__()
        if scale is None and zero_point is not None:
            raise ValueError("QuantStub: 'scale' must be given with 'zero_point', got None")
        if scale is not None and not (isinstance(scale, (int, float)) and 0 < scale < math.inf):
            raise ValueError(f"QuantStub: 'scale' must be finite and positive, got {scale!r}")
        self.scale = scale
        self.zero_point = zero_point
        if qconfig is not None:
            self.qconfig = qconfig

    def forward(self, x: Tensor) -> Tensor:
        """Returns `x`."""
        return x


class DeQuantStub(nn.Module):
    """Marks where quantized data becomes float. The identity in a float model."""

    def __init__(self, qconfig: Any = None) -> None:
        super().__init__()
        if qconfig is not None:
            self.qconfig = qconfig

    def forward(self, x: Tensor) -> Tensor:
        """Returns `x`."""
        return x


def _check_tensor(path: str, x: Tensor, scale: Tensor) -> None:
    with torch._C.DisableTorchFunction():
        if x.layout != torch.strided or x.is_quantized:
            kind = x.dtype if x.is_quantized else x.layout
            raise TypeError(f"{path}: 'x' must be a dense floating-point tensor, got {kind}")
        if x.device != scale.device:
            raise ValueError(
                f"{path}: 'x' must be on {scale.device}, where the model is, got {x.device}: move "
                "one of them"
            )


class PreparedQuantStub(PreparedLayer, nn.Module):
    """Observes and fake-quantizes what enters the quantized part."""

    @classmethod
    def from_float(cls, source: Any, qconfig: Any, path: str) -> nn.Module:
        """Take over a stub, ours or torch's."""
        self: Any = cls()
        adopt_hooks(self, source)
        self.init_layer(path)
        self.training = source.training
        if qconfig.activation is None:
            raise ValueError(f"prepare_qat: {path}: a QuantStub needs a qconfig with an activation")
        factory = qconfig.activation
        if getattr(source, "scale", None) is not None:
            factory = factory.with_args(scale=source.scale, zero_point=source.zero_point)
        self.activation_post_process = factory().train(self.training)
        return self

    @torch.jit.unused
    def _eager(self, x: Tensor) -> Tensor:
        if not isinstance(x, Tensor):
            raise TypeError(
                f"{self._path}: 'x' must be a floating-point tensor, got {type(x).__name__}"
            )
        _check_tensor(self._path, x, self.activation_post_process.scale)
        try:
            return self.activation_post_process.quantize_and_tag(x, self._path)
        except (ValueError, TypeError, RuntimeError) as error:
            raise self.named(error) from None

    def needs_input_grid(self) -> bool:
        """A stub's input is float."""
        return False

    def forward(self, x: Tensor) -> Tensor:
        """Floats to floats on the grid."""
        if torch.jit.is_scripting():
            return self.activation_post_process(x)
        else:
            return self._eager(x)


class ConvertedQuantStub(ConvertedLayer, nn.Module):
    """Floats to uint8 codes. State: ``scale``, stored ``zero_point``."""

    @classmethod
    def from_prepared(cls, source: Any) -> nn.Module:
        """With the scale that the prepared stub uses."""
        self: Any = cls()
        adopt_hooks(self, source)
        self.init_layer(source._path)
        self.take_grid(source.activation_post_process)
        self.training = False
        return self

    @torch.jit.unused
    def _eager(self, x: Tensor) -> Tensor:
        if not isinstance(x, Tensor):
            raise TypeError(
                f"{self._path}: 'x' must be a floating-point tensor, got {type(x).__name__}"
            )
        with torch._C.DisableTorchFunction():
            _check_tensor(self._path, x, self.scale)
            try:
                q = torch.ops.horizon.quantize(x, self.scale, self.zero_point)
            except (ValueError, TypeError, RuntimeError) as error:
                raise self.named(error) from None
            return _carry.set_tag(q, ("codes", self.scale, self.zero_point, 0, self._path))

    def needs_input_grid(self) -> bool:
        """A stub's input is float."""
        return False

    def forward(self, x: Tensor) -> Tensor:
        """Floats to codes."""
        if torch.jit.is_scripting():
            return torch.ops.horizon.quantize(x, self.scale, self.zero_point)
        else:
            return self._eager(x)


class PreparedDeQuantStub(PreparedLayer, nn.Module):
    """Ends the quantized part: the result carries no grid."""

    @classmethod
    def from_float(cls, source: Any, qconfig: Any, path: str) -> nn.Module:
        """Take over a stub, ours or torch's."""
        self: Any = cls()
        adopt_hooks(self, source)
        self.init_layer(path)
        self.training = source.training
        return self

    @torch.jit.unused
    def _eager(self, x: Tensor) -> Tensor:
        with torch._C.DisableTorchFunction():
            self.record_dtype(x)
            tag = _carry.get_tag(x)
            if tag is not None and tag[0] == "grid":
                self.check_version(x, tag, "input")
            self.record("input", ("off", self._path) if tag is None else tag)
            return torch.ops.aten.alias(x)

    def problem(self, operand: str) -> str | None:
        """A high-precision output may end here; other float results may not."""
        tag = self._inputs.get(operand)
        if tag is not None and tag[0] == "lost" and tag[1] == HIGH_PRECISION:
            return None
        return super().problem(operand)

    def needs_input_grid(self) -> bool:
        """Not in the prepared stage: data is float already."""
        return False

    def forward(self, x: Tensor) -> Tensor:
        """The same values, no longer on a grid."""
        if torch.jit.is_scripting():
            return x
        else:
            return self._eager(x)


class ConvertedDeQuantStub(ConvertedLayer, nn.Module):
    """uint8 codes to fp32; a high-precision result passes."""

    @classmethod
    def from_prepared(cls, source: Any) -> nn.Module:
        """The converted form."""
        self: Any = cls()
        adopt_hooks(self, source)
        self.init_layer(source._path)
        self.take_records(source)
        self._inputs = {k: t for k, t in self._inputs.items() if t is not None and t[0] != "off"}
        self.training = False
        return self

    @torch.jit.unused
    def _eager(self, x: Tensor) -> Tensor:
        with torch._C.DisableTorchFunction():
            tag = _carry.get_tag(x)
            if not _carry.is_quantized(tag):
                if isinstance(x, Tensor) and x.is_floating_point():
                    self.record("input", ("off", self._path))
                    return x
                self.operand_codes(x, "input")
            self.check_version(x, tag, "input")  # type: ignore[arg-type]
            self.record("input", tag)
            return torch.ops.horizon.dequantize(
                x,
                tag[1],  # type: ignore[index]
                tag[2],  # type: ignore[index]
                self.output_dtype,
            )

    def forward(self, x: Tensor) -> Tensor:
        """Codes to floats."""
        if torch.jit.is_scripting():
            if self.script_quantized:
                return torch.ops.horizon.dequantize(
                    x, self.input_scale, self.input_zero_point, self.output_dtype
                )
            return x
        else:
            return self._eager(x)
