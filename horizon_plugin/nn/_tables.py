"""Elementwise functions on codes: a table of their values at all 256 codes.

The table is made where the function runs, for the scale that the operand has there: every code
becomes its real value in fp64, goes through the float function in fp64, and is quantized. Values
that differ in the last bits of fp64 between two machines' mathematical functions are the same code:
a value can lie on a rounding boundary only where the function is rational, and there it is
computed by exact or correctly rounded operations.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from horizon_plugin.nn._unary import ConvertedUnary, PreparedUnary, UnaryOps


class TableOps(UnaryOps):
    """Mixin: the integer form of any elementwise `_float`."""

    def _integer(self, q: Tensor, s: Tensor, z: Tensor, out_s: Tensor, out_z: Tensor) -> Tensor:
        return self._by_table(q, s, z, out_s, out_z)

    def _by_table(self, q: Tensor, s: Tensor, z: Tensor, out_s: Tensor, out_z: Tensor) -> Tensor:
        codes = torch.arange(256, dtype=torch.uint8, device=q.device)
        values = self._float(torch.ops.horizon.dequantize(codes, s, z, torch.float64))
        table = torch.ops.horizon.quantize(values, out_s, out_z)
        return torch.ops.horizon.quantized_lookup(q, table)


class HardswishOps(TableOps):
    """``x * relu6(x + 3) / 6``."""

    def _float(self, x: Tensor) -> Tensor:
        return F.hardswish(x)


class HardsigmoidOps(TableOps):
    """``relu6(x + 3) / 6``."""

    def _float(self, x: Tensor) -> Tensor:
        return F.hardsigmoid(x)


class HardtanhOps(TableOps):
    """``clamp(x, min_val, max_val)``."""

    def _float(self, x: Tensor) -> Tensor:
        return F.hardtanh(x, self.min_val, self.max_val)


class SigmoidOps(TableOps):
    """``1 / (1 + exp(-x))``."""

    def _float(self, x: Tensor) -> Tensor:
        return torch.sigmoid(x)


class TanhOps(TableOps):
    """``tanh(x)``."""

    def _float(self, x: Tensor) -> Tensor:
        return torch.tanh(x)


class SiLUOps(TableOps):
    """``x * sigmoid(x)``."""

    def _float(self, x: Tensor) -> Tensor:
        return F.silu(x)


class MishOps(TableOps):
    """``x * tanh(softplus(x))``."""

    def _float(self, x: Tensor) -> Tensor:
        return F.mish(x)


class GELUOps(TableOps):
    """``x * Phi(x)``, or its approximation by tanh."""

    def _float(self, x: Tensor) -> Tensor:
        return F.gelu(x, approximate=self.approximate)


class LeakyReLUOps(TableOps):
    """``x``, times `negative_slope` below 0."""

    def _float(self, x: Tensor) -> Tensor:
        return F.leaky_relu(x, self.negative_slope)


class PReLUOps(TableOps):
    """``x``, times a learned slope below 0. A slope for each channel has no table."""

    def _float(self, x: Tensor) -> Tensor:
        return F.prelu(x, self.weight.to(x.dtype))

    def _integer(self, q: Tensor, s: Tensor, z: Tensor, out_s: Tensor, out_z: Tensor) -> Tensor:
        if self.num_parameters == 1:
            return self._by_table(q, s, z, out_s, out_z)
        y = self._float(torch.ops.horizon.dequantize(q, s, z, None))
        return torch.ops.horizon.quantize(y, out_s, out_z)


class ELUOps(TableOps):
    """``x``, or ``alpha * (exp(x) - 1)`` below 0."""

    def _float(self, x: Tensor) -> Tensor:
        return F.elu(x, self.alpha)


class CELUOps(TableOps):
    """``x``, or ``alpha * (exp(x / alpha) - 1)`` below 0."""

    def _float(self, x: Tensor) -> Tensor:
        return F.celu(x, self.alpha)


class SELUOps(TableOps):
    """A scaled ELU."""

    def _float(self, x: Tensor) -> Tensor:
        return F.selu(x)


class SoftplusOps(TableOps):
    """``log(1 + exp(beta * x)) / beta``."""

    def _float(self, x: Tensor) -> Tensor:
        return F.softplus(x, self.beta, self.threshold)


class SoftsignOps(TableOps):
    """``x / (1 + |x|)``."""

    def _float(self, x: Tensor) -> Tensor:
        return F.softsign(x)


class LogSigmoidOps(TableOps):
    """``log(sigmoid(x))``."""

    def _float(self, x: Tensor) -> Tensor:
        return F.logsigmoid(x)


class PreparedPReLU(PReLUOps, PreparedUnary, nn.PReLU):
    """`nn.PReLU` with an output quantizer."""


class ConvertedPReLU(PReLUOps, ConvertedUnary, nn.Module):
    """`nn.PReLU` on codes. State: ``weight``, the slopes."""

    def _deploy(self) -> None:
        slope = self.weight.detach().clone()
        del self._parameters["weight"]
        self.register_buffer("weight", slope)


_OPS: dict[type[nn.Module], type] = {
    nn.Hardswish: HardswishOps,
    nn.Hardsigmoid: HardsigmoidOps,
    nn.Hardtanh: HardtanhOps,
    nn.Sigmoid: SigmoidOps,
    nn.Tanh: TanhOps,
    nn.SiLU: SiLUOps,
    nn.Mish: MishOps,
    nn.GELU: GELUOps,
    nn.LeakyReLU: LeakyReLUOps,
    nn.ELU: ELUOps,
    nn.CELU: CELUOps,
    nn.SELU: SELUOps,
    nn.Softplus: SoftplusOps,
    nn.Softsign: SoftsignOps,
    nn.LogSigmoid: LogSigmoidOps,
}


def _derive(stage: str, layer: type, text: str) -> dict[type[nn.Module], Any]:
    """One class for each function: its ops, the stage's layer, and torch's class for its repr."""
    made = {}
    for base, ops in _OPS.items():
        name = f"{stage}{base.__name__}"
        doc = f"`nn.{base.__name__}` {text}"
        made[base] = type(name, (ops, layer, base), {"__module__": __name__, "__doc__": doc})
    return made


#: Float class -> prepared class, and float class -> converted class.
PREPARED = _derive("Prepared", PreparedUnary, "with an output quantizer; a table in eval mode.")
CONVERTED = _derive("Converted", ConvertedUnary, "on codes, by table.")
globals().update({cls.__name__: cls for cls in (*PREPARED.values(), *CONVERTED.values())})
PREPARED[nn.PReLU] = PreparedPReLU
CONVERTED[nn.PReLU] = ConvertedPReLU
