"""From a partitioned float module to an int8 one, by calibration."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from horizon_plugin import _C
from horizon_plugin.jit._objects import graph_of, wrap
from horizon_plugin.jit._partition import recorded_graph

# The preset of numerics.md, and the smallest code, of each dtype that a pair may ask for.
_GRIDS = {"int8": (0, -128), "uint8": (2, 0)}


def _hints(block: Any) -> Iterable[torch.Node]:
    for node in block.nodes():
        if node.kind() == "annotation::cast_hint":
            yield node
        for inner in node.blocks():
            yield from _hints(inner)


def quantize(
    partitioned: torch.jit.ScriptModule, calibration_inputs: Iterable[Any]
) -> torch.jit.ScriptModule:
    """An int8 TorchScript module from a partitioned float one, without training.

    The ranges of all annotated values (running minimum and maximum) are observed while the module
    runs on every element of `calibration_inputs`: a tensor, or a tuple of arguments. Groups of
    conv1d, conv2d, conv_transpose2d, linear, add and mul with constant weights, followed by batch
    norm, relu, relu6 and max pooling, become integer operators, and so do average pools, means and
    cats between pairs; whatever else lies between runs in float, on values of the grids. A
    convolution whose result has no pair (`annotate_outputs=False`) returns float.

    A prepared model's trace keeps the grids that its quantizers have, needs no calibration, and
    becomes exactly what it computes in eval mode. Fake-quantize operators keep theirs, too.

    Pairs of "int8" take the grid of the "horizon" preset, those of "uint8" that of "x86"
    (docs/numerics.md). The module must be on the CPU.

    Raises:
        TypeError: `partitioned` is no ScriptModule.
        ValueError: It was not partitioned, its pairs ask for another dtype, or the inputs never
            reach one of them.
    """
    if not isinstance(partitioned, torch.jit.ScriptModule):
        raise TypeError(
            "quantize: 'partitioned' must be a partitioned ScriptModule, "
            f"got {type(partitioned).__name__}"
        )
    graph = recorded_graph("quantize", partitioned)
    (dtype, *_), _ = _C.jit_read_record(graph)
    if dtype not in _GRIDS:
        raise ValueError(
            f"quantize: 'partitioned' must have pairs of {' or '.join(_GRIDS)}, got {dtype}; "
            "partition with another dtype_input"
        )
    preset, quant_min = _GRIDS[dtype]
    observed = wrap(_C.jit_add_observers(partitioned._c, preset))
    if isinstance(calibration_inputs, Tensor):
        raise TypeError(
            "quantize: 'calibration_inputs' must be a list of inputs, got a tensor; wrap it in one"
        )
    with torch.no_grad():
        for inputs in calibration_inputs:
            observed(*(inputs if isinstance(inputs, tuple) else (inputs,)))
    grids = _C.jit_known_grids(partitioned._c)
    for index, hint in enumerate(_hints(graph_of(observed))):
        if grids[index][0] != 0:
            continue

        def state(name: str, index: int = index) -> Any:
            return observed._c.getattr(f"horizon_{index}_{name}").item()

        if state("observed") == 0:
            name = next(iter(hint.inputs())).debugName()
            raise ValueError(
                f"quantize: 'calibration_inputs' must reach every pair, got none that computes "
                f"%{name}"
            )
        grids[index] = (1, state("scale"), state("zero_point") - quant_min)
    return wrap(_C.jit_lower(partitioned._c, grids))
