"""A trace of a converted model, in the core operators that the emitters know."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from horizon_plugin._traced import copy_model
from horizon_plugin.export._quiet import quiet
from horizon_plugin.nn._layer import ConvertedLayer, PreparedLayer
from horizon_plugin.quantization._convert import convert

# Kept whole: ONNX has them as one operator, and what they decompose to is many.
_WHOLE = """
    hardswish.default hardsigmoid.default silu.default mish.default pad.default linear.default
    upsample_nearest2d.vec upsample_bilinear2d.vec
""".split()


def converted(model: nn.Module) -> nn.Module:
    """The converted form: of a copy, for a prepared model."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"to_onnx: 'model' must be a Module, got {type(model).__name__}")
    layers = list(model.modules())
    if any(isinstance(layer, PreparedLayer) for layer in layers):
        return convert(model)
    if any(isinstance(layer, ConvertedLayer) for layer in layers):
        return copy_model(model)
    raise ValueError(
        "to_onnx: 'model' must be prepared or converted, got a float model: call prepare_qat, "
        "train, and pass the result"
    )


def as_arguments(x: Any) -> tuple[Any, ...]:
    """The model's arguments as a tuple; TypeError unless each is a tensor."""
    arguments = (x,) if isinstance(x, Tensor) else x
    if not isinstance(arguments, (tuple, list)) or not arguments:
        raise TypeError(f"to_onnx: 'x' must be a tensor or a tuple of them, got {type(x).__name__}")
    for argument in arguments:
        if not isinstance(argument, Tensor):
            raise TypeError(
                "to_onnx: 'x' must be a tensor or a tuple of them, got "
                f"{type(argument).__name__} in it"
            )
    return tuple(arguments)


def trace(model: nn.Module, arguments: tuple[Tensor, ...], dynamic_batch: bool) -> ExportedProgram:
    """Export; with `dynamic_batch` the first size of every argument may vary where the model lets.

    A batch of one is repeated: torch.export would take the 1 for a constant.
    """
    shapes = None
    if dynamic_batch:
        arguments = tuple(torch.cat([x, x]) if x.dim() and x.size(0) == 1 else x for x in arguments)
        shapes = tuple({0: Dim.AUTO} if x.dim() else {} for x in arguments)
    with torch.no_grad(), quiet():
        program = torch.export.export(model, arguments, dynamic_shapes=shapes, strict=False)
        table = torch.export.default_decompositions()
        for name in _WHOLE:
            packet, overload = name.split(".")
            table.pop(getattr(getattr(torch.ops.aten, packet), overload), None)
        return program.run_decompositions(table)
