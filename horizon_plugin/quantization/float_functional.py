"""Arithmetic between tensors as a module, so that its result can have a quantizer."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from horizon_plugin import _carry
from horizon_plugin.nn._layer import (
    HIGH_PRECISION,
    ConvertedLayer,
    PreparedLayer,
    adopt_hooks,
    wants_surrogate,
)
from horizon_plugin.quantization._functional_methods import FunctionalMethods
from horizon_plugin.quantization._functional_ops import FLOAT, INTEGER
from horizon_plugin.quantization.fake_quantize import FakeQuantize


class FloatFunctional(nn.Module):
    """Operations that combine tensors: use one instance per place in the model.

    Each method is the torch function of the same name; `prepare_qat` gives the result a
    quantizer.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Refuses: use the methods."""
        raise RuntimeError("FloatFunctional is used through its methods (add, mul, cat, …)")

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """``x + y``, broadcasting."""
        return torch.add(x, y)

    def add_relu(self, x: Tensor, y: Tensor) -> Tensor:
        """``relu(x + y)``."""
        return F.relu(torch.add(x, y))

    def add_scalar(self, x: Tensor, y: float) -> Tensor:
        """``x + y`` for a number y."""
        return torch.add(x, y)

    def sub(self, x: Tensor, y: Tensor) -> Tensor:
        """``x - y``, broadcasting."""
        return torch.sub(x, y)

    def mul(self, x: Tensor, y: Tensor) -> Tensor:
        """``x * y``, broadcasting."""
        return torch.mul(x, y)

    def mul_scalar(self, x: Tensor, y: float) -> Tensor:
        """``x * y`` for a number y."""
        return torch.mul(x, y)

    def cat(self, x: list[Tensor], dim: int = 0) -> Tensor:
        """Concatenation along `dim`."""
        return torch.cat(x, dim=dim)

    def mean(self, x: Tensor, dim: list[int], keepdim: bool = False) -> Tensor:
        """Mean over the dimensions `dim`."""
        return torch.mean(x, dim, keepdim)

    def matmul(self, x: Tensor, y: Tensor) -> Tensor:
        """Matrix product."""
        return torch.matmul(x, y)


class PreparedFloatFunctional(PreparedLayer, FunctionalMethods):
    """Float arithmetic in training, integer arithmetic in eval, one output quantizer."""

    if TYPE_CHECKING:  # torch.jit would read annotations of attributes as types
        activation_post_process: FakeQuantize | None

    @classmethod
    def from_float(cls, source: Any, qconfig: Any, path: str) -> nn.Module:
        """Take over a FloatFunctional, ours or torch's."""
        self: Any = cls()
        adopt_hooks(self, source)
        self.init_layer(path)
        self.init_operands()
        self.training = source.training
        self.activation_post_process = None
        if qconfig.activation is not None:
            self.activation_post_process = qconfig.activation().train(self.training)
        self._places = []
        return self

    def _operands(self, tensors: list[Tensor]) -> list[tuple[Tensor, Tensor]] | None:
        grids = [self.operand_grid(t, f"operand {i}") for i, t in enumerate(tensors)]
        if all(scale is not None for scale, _ in grids):
            return grids  # type: ignore[return-value]
        return None

    def _watch_places(self, method: str, tensors: list[Tensor]) -> None:
        tags = [_carry.get_tag(t) for t in tensors]
        if not all(_carry.is_quantized(tag) for tag in tags):
            return
        place = (method, *(tag[4] for tag in tags))  # type: ignore[index]
        if place not in self._places:
            self._places.append(place)
            if len(self._places) == 2:
                warnings.warn(
                    f"{self._path}: one FloatFunctional is used at several places, which share "
                    "its output range: give each place its own instance",
                    UserWarning,
                    stacklevel=4,
                )

    @torch.jit.unused
    def _run(self, method: str, tensors: list[Tensor], *extra: Any) -> Tensor:
        with torch._C.DisableTorchFunction():
            for i, t in enumerate(tensors):
                if not isinstance(t, Tensor):
                    raise TypeError(
                        f"{self._path}.{method}: operand {i} must be a Tensor, got "
                        f"{type(t).__name__}: use {method}_scalar for numbers"
                    )
            tensors = [self.from_island(t, f"operand {i}") for i, t in enumerate(tensors)]
            if not torch.compiler.is_compiling():
                self._watch_places(method, tensors)
            grids = self._operands(tensors)
            quantizer = self.activation_post_process
            try:
                if quantizer is None:
                    self.record_dtype(tensors[0])
                    y = FLOAT[method](tensors, *extra)
                    return _carry.set_tag(y, ("lost", HIGH_PRECISION, self._path))
                integer = (
                    grids is not None
                    and not self.training
                    and quantizer.fake_quant_enabled
                    and not quantizer.moves()
                )
                if not integer:
                    y = FLOAT[method](tensors, *extra)
                    return quantizer.quantize_and_tag(y, self._path)
                scale, zero_point = quantizer.scale.clone(), quantizer.stored_zero_point()
                codes = [
                    torch.ops.horizon.quantize(t.detach(), s, z)
                    for t, (s, z) in zip(tensors, grids, strict=True)  # type: ignore[arg-type]
                ]
                q = INTEGER[method](codes, grids, scale, zero_point, *extra)
                y = torch.ops.horizon.dequantize(q, scale, zero_point, tensors[0].dtype)
                if wants_surrogate(tensors):
                    surrogate = quantizer.quantize(FLOAT[method](tensors, *extra), False)[0]
                    y = torch.ops.horizon.straight_through(y, surrogate)
            except (ValueError, TypeError, RuntimeError, IndexError) as error:
                raise self.named(error) from None
            return _carry.set_tag(y, ("grid", scale, zero_point, 0, self._path))

    def _code(self, x: Tensor, i: int) -> Tensor:
        return torch.ops.horizon.quantize(x, self.operand_scales[i], self.operand_zero_points[i])

    def _value(self, q: Tensor, like: Tensor) -> Tensor:
        scale, zero_point = self._output()
        return torch.ops.horizon.dequantize(q, scale, zero_point, like.dtype)

    def _output(self) -> tuple[Tensor, Tensor]:
        quantizer: Any = self.activation_post_process
        return quantizer.scale, quantizer.zero_point - quantizer.quant_min

    def __prepare_scriptable__(self) -> Any:
        """Fix the operands' grids; a high-precision result needs a trace."""
        super().__prepare_scriptable__()
        if self.activation_post_process is None:
            raise RuntimeError(
                f"torch.jit.script: {self._path} has a high-precision output: use torch.jit.trace"
            )
        self.fix_operands()
        return self


class ConvertedFloatFunctional(ConvertedLayer, FunctionalMethods):
    """The same methods on uint8 codes. State: output ``scale`` and stored ``zero_point``."""

    @classmethod
    def from_prepared(cls, source: Any) -> nn.Module:
        """The integer form, with the scale that prepared eval uses."""
        self: Any = cls()
        adopt_hooks(self, source)
        self.init_layer(source._path)
        self.init_operands()
        self.take_records(source)
        self.take_grid(source.activation_post_process)
        self.training = False
        return self

    @torch.jit.unused
    def _run(self, method: str, tensors: list[Tensor], *extra: Any) -> Tensor:
        with torch._C.DisableTorchFunction():
            tensors = [self.from_island(t, f"operand {i}") for i, t in enumerate(tensors)]
            grids = [self.operand_codes(t, f"operand {i}") for i, t in enumerate(tensors)]
            try:
                if self.scale is None:
                    floats = [
                        torch.ops.horizon.dequantize(t, s, z, self.output_dtype)
                        for t, (s, z) in zip(tensors, grids, strict=True)
                    ]
                    return FLOAT[method](floats, *extra)
                q = INTEGER[method](tensors, grids, self.scale, self.zero_point, *extra)
            except (ValueError, TypeError, RuntimeError, IndexError) as error:
                raise self.named(error) from None
            return _carry.set_tag(q, ("codes", self.scale, self.zero_point, 0, self._path))

    def _code(self, x: Tensor, i: int) -> Tensor:
        return self.scripted_codes(x, self.operand_scales[i], self.operand_zero_points[i])

    def _value(self, q: Tensor, like: Tensor) -> Tensor:
        return q

    def _output(self) -> tuple[Tensor, Tensor]:
        return self.scale, self.zero_point

    def __prepare_scriptable__(self) -> Any:
        """Fix the operands' grids; a high-precision result needs a trace."""
        super().__prepare_scriptable__()
        if self.scale is None:
            raise RuntimeError(
                f"torch.jit.script: {self._path} has a high-precision output: use torch.jit.trace"
            )
        self.fix_operands()
        return self
