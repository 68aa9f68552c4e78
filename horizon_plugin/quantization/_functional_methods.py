"""The methods of FloatFunctional after `prepare_qat`, eager and scripted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from horizon_plugin import _carry


class FunctionalMethods(nn.Module):
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
        q = torch.ops.horizon.quantized_affine_scalar(
            self._code(x, 0),
            self.operand_scales[0],
            self.operand_zero_points[0],
            factor,
            offset,
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
