"""Arithmetic between tensors as a module, so that its result can have a quantizer."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from horizon_plugin import _carry
from horizon_plugin.nn._layer import ConvertedLayer, PreparedLayer, adopt_hooks
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


class _Functional(nn.Module):
    """The methods of the prepared and converted stage, eager and scripted.

    TorchScript sees no tags: `operand_scales` and `operand_zero_points` are those of the last
    forward, fixed by `__prepare_scriptable__`.
    """

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """What the layer mixed with this one has."""

    def init_operands(self) -> None:
        """No operands recorded yet."""
        self.operand_scales: list[Tensor] = [torch.empty(0)]
        self.operand_zero_points: list[Tensor] = [torch.empty(0, dtype=torch.int32)]

    def fix_operands(self) -> None:
        """Turn the recorded tags into constants for the script."""
        layer: Any = self
        operands = [name for name in layer._inputs if name.startswith("operand")]
        tags = [layer._inputs[name] for name in operands]
        if not all(_carry.is_quantized(tag) for tag in tags):
            raise RuntimeError(
                f"torch.jit.script: {layer._path} has an operand that is not quantized: use "
                "torch.jit.trace"
            )
        for name in operands:
            if len(layer._producers.get(name, [])) > 1:
                raise RuntimeError(
                    f"torch.jit.script: {layer._path} is called with results of "
                    f"{' and '.join(layer._producers[name])}, whose scales may differ: use "
                    "torch.jit.trace"
                )
        if tags:
            self.operand_scales = [tag[1].detach().clone() for tag in tags]
            self.operand_zero_points = [tag[2].detach().clone() for tag in tags]

    def forward(self, x: Tensor) -> Tensor:
        """Refuses: use the methods."""
        raise RuntimeError("FloatFunctional is used through its methods (add, mul, cat, …)")

    def _script_binary(self, method: str, x: Tensor, y: Tensor) -> Tensor:
        a, b = self._code(x, 0), self._code(y, 1)
        scale, zero_point = self._output()
        if method == "mul":
            q = torch.ops.horizon.quantized_mul(
                a,
                self.operand_scales[0],
                self.operand_zero_points[0],
                b,
                self.operand_scales[1],
                self.operand_zero_points[1],
                scale,
                zero_point,
                0,
            )
        else:
            q = torch.ops.horizon.quantized_add(
                a,
                self.operand_scales[0],
                self.operand_zero_points[0],
                b,
                self.operand_scales[1],
                self.operand_zero_points[1],
                scale,
                zero_point,
                1 if method == "add_relu" else 0,
                -1.0 if method == "sub" else 1.0,
            )
        return self._value(q, x)

    def _script_affine(self, x: Tensor, factor: float, offset: float) -> Tensor:
        scale, zero_point = self._output()
        q = torch.ops.horizon.quantized_affine(
            self._code(x, 0),
            self.operand_scales[0],
            self.operand_zero_points[0],
            torch.full((1,), factor, dtype=torch.float64, device=x.device),
            torch.full((1,), offset, dtype=torch.float64, device=x.device),
            scale,
            zero_point,
            0,
        )
        return self._value(q, x)

    def _script_cat(self, tensors: list[Tensor], dim: int) -> Tensor:
        scale, zero_point = self._output()
        codes: list[Tensor] = []
        for i, t in enumerate(tensors):
            codes.append(self._code(t, i))
        q = torch.ops.horizon.quantized_cat(
            codes, self.operand_scales, self.operand_zero_points, dim, scale, zero_point
        )
        return self._value(q, tensors[0])

    def _script_mean(self, x: Tensor, dim: list[int], keepdim: bool) -> Tensor:
        scale, zero_point = self._output()
        q = torch.ops.horizon.quantized_mean(
            self._code(x, 0),
            self.operand_scales[0],
            self.operand_zero_points[0],
            dim,
            keepdim,
            scale,
            zero_point,
        )
        return self._value(q, x)

    def _script_matmul(self, x: Tensor, y: Tensor) -> Tensor:
        scale, zero_point = self._output()
        a = torch.ops.horizon.dequantize(
            self._code(x, 0), self.operand_scales[0], self.operand_zero_points[0], None
        )
        b = torch.ops.horizon.dequantize(
            self._code(y, 1), self.operand_scales[1], self.operand_zero_points[1], None
        )
        q = torch.ops.horizon.quantize(torch.matmul(a, b), scale, zero_point)
        return self._value(q, x)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """``x + y``, quantized."""
        if torch.jit.is_scripting():
            return self._script_binary("add", x, y)
        else:
            return self._run("add", [x, y])

    def add_relu(self, x: Tensor, y: Tensor) -> Tensor:
        """``relu(x + y)``, quantized."""
        if torch.jit.is_scripting():
            return self._script_binary("add_relu", x, y)
        else:
            return self._run("add_relu", [x, y])

    def add_scalar(self, x: Tensor, y: float) -> Tensor:
        """``x + y`` for a number y, quantized."""
        if torch.jit.is_scripting():
            return self._script_affine(x, 1.0, float(y))
        else:
            return self._run("add_scalar", [x], y)

    def sub(self, x: Tensor, y: Tensor) -> Tensor:
        """``x - y``, quantized."""
        if torch.jit.is_scripting():
            return self._script_binary("sub", x, y)
        else:
            return self._run("sub", [x, y])

    def mul(self, x: Tensor, y: Tensor) -> Tensor:
        """``x * y``, quantized."""
        if torch.jit.is_scripting():
            return self._script_binary("mul", x, y)
        else:
            return self._run("mul", [x, y])

    def mul_scalar(self, x: Tensor, y: float) -> Tensor:
        """``x * y`` for a number y, quantized."""
        if torch.jit.is_scripting():
            return self._script_affine(x, float(y), 0.0)
        else:
            return self._run("mul_scalar", [x], y)

    def cat(self, x: list[Tensor], dim: int = 0) -> Tensor:
        """Concatenation, every operand brought onto the output's grid."""
        if torch.jit.is_scripting():
            return self._script_cat(x, dim)
        else:
            return self._run("cat", list(x), dim)

    def mean(self, x: Tensor, dim: list[int], keepdim: bool = False) -> Tensor:
        """Mean over the dimensions `dim`, quantized."""
        if torch.jit.is_scripting():
            return self._script_mean(x, dim, keepdim)
        else:
            return self._run("mean", [x], [dim] if isinstance(dim, int) else list(dim), keepdim)

    def matmul(self, x: Tensor, y: Tensor) -> Tensor:
        """Matrix product in float, quantized."""
        if torch.jit.is_scripting():
            return self._script_matmul(x, y)
        else:
            return self._run("matmul", [x, y])


class PreparedFloatFunctional(PreparedLayer, _Functional):
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
            if not torch.compiler.is_compiling():
                self._watch_places(method, tensors)
            grids = self._operands(tensors)
            quantizer = self.activation_post_process
            try:
                if quantizer is None:
                    y = _FLOAT[method](tensors, *extra)
                    return _carry.set_tag(y, ("lost", "high-precision output", self._path))
                integer = (
                    grids is not None
                    and not self.training
                    and quantizer.fake_quant_enabled
                    and not quantizer.moves()
                )
                if not integer:
                    y = _FLOAT[method](tensors, *extra)
                    return quantizer.quantize_and_tag(y, self._path)
                scale, zero_point = quantizer.scale.clone(), quantizer.stored_zero_point()
                codes = [
                    torch.ops.horizon.quantize(t.detach(), s, z)
                    for t, (s, z) in zip(tensors, grids, strict=True)  # type: ignore[arg-type]
                ]
                q = _INTEGER[method](codes, grids, scale, zero_point, *extra)
                y = torch.ops.horizon.dequantize(q, scale, zero_point, tensors[0].dtype)
                if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
                    surrogate = quantizer.quantize(_FLOAT[method](tensors, *extra), False)[0]
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


class ConvertedFloatFunctional(ConvertedLayer, _Functional):
    """The same methods on uint8 codes. State: output ``scale`` and stored ``zero_point``."""

    @classmethod
    def from_prepared(cls, source: Any) -> nn.Module:
        """The integer form, with the scale that prepared eval uses."""
        self: Any = cls()
        adopt_hooks(self, source)
        self.init_layer(source._path)
        self.init_operands()
        self._inputs = dict(source._inputs)
        self._producers = {k: list(v) for k, v in source._producers.items()}
        quantizer = source.activation_post_process
        if quantizer is None:
            self.register_buffer("scale", None)
            self.register_buffer("zero_point", None)
        else:
            self.register_buffer("scale", quantizer.scale.detach().clone())
            self.register_buffer("zero_point", quantizer.stored_zero_point().detach().clone())
        self.training = False
        return self

    @torch.jit.unused
    def _run(self, method: str, tensors: list[Tensor], *extra: Any) -> Tensor:
        with torch._C.DisableTorchFunction():
            grids = [self.operand_codes(t, f"operand {i}") for i, t in enumerate(tensors)]
            try:
                if self.scale is None:
                    floats = [
                        torch.ops.horizon.dequantize(t, s, z, None)
                        for t, (s, z) in zip(tensors, grids, strict=True)
                    ]
                    return _FLOAT[method](floats, *extra)
                q = _INTEGER[method](tensors, grids, self.scale, self.zero_point, *extra)
            except (ValueError, TypeError, RuntimeError, IndexError) as error:
                raise self.named(error) from None
            return _carry.set_tag(q, ("codes", self.scale, self.zero_point, 0, self._path))

    def _code(self, x: Tensor, i: int) -> Tensor:
        return x

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


Grids = list[tuple[Tensor, Tensor]]

_FLOAT: dict[str, Callable[..., Tensor]] = {
    "add": lambda t: torch.add(t[0], t[1]),
    "add_relu": lambda t: F.relu(torch.add(t[0], t[1])),
    "add_scalar": lambda t, c: torch.add(t[0], c),
    "sub": lambda t: torch.sub(t[0], t[1]),
    "mul": lambda t: torch.mul(t[0], t[1]),
    "mul_scalar": lambda t, c: torch.mul(t[0], c),
    "cat": lambda t, dim: torch.cat(t, dim),
    "mean": lambda t, dim, keepdim: torch.mean(t[0], dim, keepdim),
    "matmul": lambda t: torch.matmul(t[0], t[1]),
}


def _binary(name: str, activation: int, alpha: float | None) -> Any:
    def run(q: list[Tensor], g: Grids, s: Tensor, z: Tensor) -> Tensor:
        op = getattr(torch.ops.horizon, name)
        extra = (activation,) if alpha is None else (activation, alpha)
        return op(q[0], g[0][0], g[0][1], q[1], g[1][0], g[1][1], s, z, *extra)

    return run


def _affine(q: Tensor, g: tuple[Tensor, Tensor], a: float, b: float, s: Any, z: Any) -> Tensor:
    factor = torch.full((1,), a, dtype=torch.float64, device=q.device)
    offset = torch.full((1,), b, dtype=torch.float64, device=q.device)
    return torch.ops.horizon.quantized_affine(q, g[0], g[1], factor, offset, s, z, 0)


def _cat(q: list[Tensor], g: Grids, s: Tensor, z: Tensor, dim: int) -> Tensor:
    return torch.ops.horizon.quantized_cat(q, [x for x, _ in g], [x for _, x in g], dim, s, z)


def _mean(q: list[Tensor], g: Grids, s: Tensor, z: Tensor, dim: list[int], keep: bool) -> Tensor:
    return torch.ops.horizon.quantized_mean(q[0], g[0][0], g[0][1], dim, keep, s, z)


def _matmul(q: list[Tensor], g: Grids, s: Tensor, z: Tensor) -> Tensor:
    x, y = (torch.ops.horizon.dequantize(t, a, b, None) for t, (a, b) in zip(q, g, strict=True))
    return torch.ops.horizon.quantize(torch.matmul(x, y), s, z)


_INTEGER: dict[str, Callable[..., Tensor]] = {
    "add": _binary("quantized_add", 0, 1.0),
    "add_relu": _binary("quantized_add", 1, 1.0),
    "add_scalar": lambda q, g, s, z, c: _affine(q[0], g[0], 1.0, float(c), s, z),
    "sub": _binary("quantized_add", 0, -1.0),
    "mul": _binary("quantized_mul", 0, None),
    "mul_scalar": lambda q, g, s, z, c: _affine(q[0], g[0], float(c), 0.0, s, z),
    "cat": _cat,
    "mean": _mean,
    "matmul": _matmul,
}
