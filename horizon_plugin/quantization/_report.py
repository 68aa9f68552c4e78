"""What is quantized in a model, and what is not, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from horizon_plugin import _carry
from horizon_plugin.nn import _layer
from horizon_plugin.nn._island import Island
from horizon_plugin.nn._passing import ConvertedPassing
from horizon_plugin.quantization import _modules
from horizon_plugin.quantization._module_tree import GROUP, POSITION
from horizon_plugin.quantization.fake_quantize import FakeQuantize


@dataclass(frozen=True)
class Row:
    """One layer: its name, class, and how it is quantized, or why not."""

    name: str
    kind: str
    state: str
    note: str


def table(rows: Sequence[tuple[str, ...]]) -> str:
    """Rows of text in aligned columns, the first underlined."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = zip(row, widths, strict=True)
        lines.append("  ".join(f"{cell:<{width}}" for cell, width in cells).rstrip())
    lines.insert(1, "-" * max(map(len, lines)))
    return "\n".join(lines)


class Report(list[Row]):
    """Rows of `report`, printable as a table."""

    def __str__(self) -> str:
        """A table with aligned columns."""
        rows = [(row.name, row.kind, row.state, row.note) for row in self]
        return table([("layer", "class", "state", "note"), *rows])

    @property
    def float_layers(self) -> list[str]:
        """Names of the layers that are left float, islands included."""
        return [row.name for row in self if row.state in ("float", "float island")]


def _grid_text(quantizer: FakeQuantize | None) -> str:
    if quantizer is None:
        return "output fp32"
    text = f"output {quantizer.dtype}"
    return text if quantizer.fake_quant_enabled else text + " (fake-quant off)"


def _island_row(path: str, module: Any, consumers: set[str]) -> Row:
    kind = type(module.module).__name__
    parts = [kind]
    if any(_carry.is_quantized(tag) for tag in module._inputs.values()):
        parts.insert(0, "dequantize")
    if path in consumers:
        parts.append("quantize")
    note = " → ".join(parts)
    if not module._inputs:
        note += " (quantized where a quantized layer takes its result)"
    elif path not in consumers:
        note += ", output float"
    return Row(path, kind, "float island", note)


def _prepared_row(path: str, module: nn.Module) -> Row:
    quantizer = getattr(module, "activation_post_process", None)
    name = type(module).__name__
    if name == "PreparedDeQuantStub":
        note = "to float"
    elif hasattr(module, "variant"):
        note = f"weight qint8 per channel, {_grid_text(quantizer)}"
    else:
        note = _grid_text(quantizer)
    problems = module.problems()  # type: ignore[operator]
    if problems:
        return Row(path, name, "float", problems[0].removeprefix(f"{path}: "))
    return Row(path, name, "fake-quantized", note)


def _converted_row(path: str, module: nn.Module) -> Row:
    scale = getattr(module, "scale", None)
    name = type(module).__name__
    if isinstance(module, ConvertedPassing):
        return Row(path, name, "keeps the grid", "")
    if isinstance(getattr(module, "weight", None), nn.Module):
        return Row(path, name, "int8", "")
    output = "output uint8 codes" if scale is not None else "output fp32"
    return Row(path, name, "int8", output)


def _float_note(module: nn.Module) -> str:
    if _modules.prepared_class(module) is not None:
        return "its qconfig is None, or has no weight quantizer"
    if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d, nn.Linear)):
        return f"{type(module).__name__} is a subclass with its own forward"
    return (
        f"no quantized form of {type(module).__name__}: with qconfig = None it runs in float "
        "between quantized layers"
    )


def _fused_into(path: str, module: nn.Module) -> str | None:
    """The path of the fused module that does the work of this identity, if it stands for one."""
    group: Any = module.__dict__.get(GROUP)
    if group is None or hasattr(module, "variant") or hasattr(module, "_path"):
        return None
    slot = group.names[group.add] if group.add >= 0 else group.names[0]
    return path.removesuffix(group.names[module.__dict__[POSITION]]) + slot


def report(model: nn.Module) -> Report:
    """List each layer: quantized how, or left float and why.

    States: ``fake-quantized`` (prepared), ``int8`` (converted), ``fused`` (into another),
    ``keeps the grid`` (pools, views, …), ``float island`` (its qconfig is None, and it runs on real
    values between quantized layers), ``float`` (nothing of it is quantized). Containers are not
    listed. Print the result for a table.
    """
    _modules.check_model("report", model)
    rows = Report()
    consumers = _modules.producers(model)
    for path, module in _modules.layers(model):
        fused_into = _fused_into(path, module)
        if fused_into is not None:
            rows.append(Row(path, type(module).__name__, "fused", f"into {fused_into}"))
        elif isinstance(module, Island):
            rows.append(_island_row(path, module, consumers))
        elif isinstance(module, _layer.PreparedLayer):
            rows.append(_prepared_row(path, module))
        elif isinstance(module, _layer.ConvertedLayer):
            rows.append(_converted_row(path, module))
        elif _modules.is_passing(module):
            rows.append(Row(path, type(module).__name__, "keeps the grid", ""))
        elif path and (not list(module.children()) or _modules.prepared_class(module) is not None):
            rows.append(Row(path, type(module).__name__, "float", _float_note(module)))
    return rows
