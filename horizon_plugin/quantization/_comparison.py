"""What quantized arithmetic changes, layer by layer: `convert(…, example_inputs=, report=True)`."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from horizon_plugin import _carry
from horizon_plugin._traced import copy_model
from horizon_plugin.nn._layer import PreparedLayer
from horizon_plugin.quantization._report import table
from horizon_plugin.quantization.fake_quantize import FakeQuantize, WeightFakeQuantize

_QUANTIZERS = (FakeQuantize, WeightFakeQuantize)


@dataclass(frozen=True)
class LayerComparison:
    """One layer's results next to its float simulation on the same operands, over all its calls.

    Attributes:
        name, kind: of the layer in the prepared model.
        codes: how many results were compared.
        differing: how many have another code than in the float simulation; None without an output
            quantizer, and so are `share` (of all) and `max_difference` (in codes).
        sqnr: signal to quantization noise in dB, against the layer's result without fake-quant of
            weight and output; inf where they are equal.
    """

    name: str
    kind: str
    codes: int
    differing: int | None
    share: float | None
    max_difference: int | None
    sqnr: float


class ConversionReport(list[LayerComparison]):
    """Rows of `convert(…, report=True)`, printable as a table.

    Attributes:
        exact: whether the converted model gave the bits of the prepared one in eval mode.
    """

    exact: bool = False

    def __str__(self) -> str:
        """A table with aligned columns, and a line on exactness."""
        head = ("layer", "class", "codes", "differ", "share", "max", "SQNR dB")
        rows = [head]
        for row in self:
            counts = ("-", "-", "-")
            if row.differing is not None:
                counts = (str(row.differing), f"{row.share:.2%}", str(row.max_difference))
            rows.append((row.name, row.kind, str(row.codes), *counts, f"{row.sqnr:.1f}"))
        same = "equal" if self.exact else "DIFFERS FROM"
        return f"{table(rows)}\nconverted {same} prepared in eval mode, to the bit"


class _Sums:
    """What accumulates over the calls of one layer."""

    def __init__(self) -> None:
        self.codes = self.differing = self.largest = 0
        self.signal = self.noise = 0.0
        self.quantized = True

    def add(self, result: Tensor, simulated: Tensor, plain: Tensor, scale: Tensor | None) -> None:
        """Count one call; `scale` is None for a high-precision output."""
        result, simulated, plain = (t.detach().double() for t in (result, simulated, plain))
        self.codes += result.numel()
        self.signal += plain.square().sum().item()
        self.noise += (result - plain).square().sum().item()
        if scale is None:
            self.quantized = False
        elif result.numel():
            apart = ((result - simulated) / scale.double()).round().abs()
            self.differing += int((apart > 0).sum())
            self.largest = max(self.largest, int(apart.max()))

    def row(self, module: PreparedLayer) -> LayerComparison:
        """The finished row."""
        sqnr = math.inf
        if self.noise > 0:
            sqnr = 10 * math.log10(self.signal / self.noise) if self.signal > 0 else -math.inf
        name, kind = module._path, type(module).__name__
        if not self.quantized:
            return LayerComparison(name, kind, self.codes, None, None, None, sqnr)
        share = self.differing / self.codes if self.codes else 0.0
        return LayerComparison(name, kind, self.codes, self.differing, share, self.largest, sqnr)


@contextlib.contextmanager
def _simulating(module: nn.Module, fake_quant: bool) -> Iterator[None]:
    """Run `module` as in training, without moving anything; optionally without its quantizers."""
    quantizers = [m for m in module.children() if isinstance(m, _QUANTIZERS)]
    before = [dict(q.__dict__) for q in quantizers]
    for quantizer in quantizers:
        quantizer.fake_quant_enabled = fake_quant
        if isinstance(quantizer, FakeQuantize):
            # A fixed range that is being calibrated: observed, hence float arithmetic, but unmoved.
            quantizer.observer, quantizer.calibrating, quantizer.observer_enabled = 2, True, True
    try:
        yield
    finally:
        for quantizer, state in zip(quantizers, before, strict=True):
            quantizer.__dict__.update(state)


def _watch(module: Any, sums: _Sums) -> None:
    """Let `module`, of a model of our own, run its float simulation beside each call."""
    entry = "_run" if hasattr(module, "_watch_places") else "_eager"
    run = getattr(module, entry)

    def both(*args: Any) -> Any:
        result = run(*args)
        tag = _carry.get_tag(result)
        scale = tag[1] if tag is not None and tag[0] == "grid" else None
        records = dict(module._inputs)
        with _simulating(module, True):
            simulated = run(*args)
        with _simulating(module, False):
            plain = run(*args)
        module._inputs = records
        sums.add(result, simulated, plain, scale)
        return result

    setattr(module, entry, both)


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        return len(a) == len(b) and all(map(_equal, a, b))
    return bool(a == b)


def compare(prepared: nn.Module, converted: nn.Module, inputs: tuple[Any, ...]) -> ConversionReport:
    """Run both models, which stay as they are, and compare them and the prepared one's layers.

    Args:
        prepared: a prepared model in any mode; a copy of it runs, in eval mode.
        converted: what `convert` made of it.
        inputs: the arguments of both.
    """
    prepared = copy_model(prepared).eval()
    counted: dict[int, tuple[Any, _Sums]] = {}
    for module in prepared.modules():
        quantized = hasattr(module, "activation_post_process") and not hasattr(module, "module")
        if isinstance(module, PreparedLayer) and quantized:
            counted[id(module)] = (module, _Sums())
    with torch.no_grad():
        expected = prepared(*inputs)
        result = converted(*inputs)
        for module, sums in counted.values():
            _watch(module, sums)
        prepared(*inputs)
    report = ConversionReport(sums.row(module) for module, sums in counted.values())
    report.exact = _equal(result, expected)
    return report
