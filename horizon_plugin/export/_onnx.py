"""`to_onnx`: a quantized model as a QuantizeLinear/DequantizeLinear graph."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from horizon_plugin._library import __version__
from horizon_plugin.export._trace import as_arguments, converted, trace
from horizon_plugin.export._walk import Walk
from horizon_plugin.export._writer import IR_VERSION, OPSET, Value, Writer, require_onnx

_BATCH = "batch"


def _check_path(path: Any) -> Path:
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"to_onnx: 'path' must be a path, got {type(path).__name__}")
    target = Path(path)
    if target.is_dir():
        raise IsADirectoryError(f"to_onnx: 'path' must be a file to write, got the folder {target}")
    folder = target.parent
    if not folder.is_dir():
        raise FileNotFoundError(f"to_onnx: 'path' must be in a folder that exists, got {target}")
    writable = target if target.exists() else folder
    if not os.access(writable, os.W_OK):
        raise PermissionError(f"to_onnx: 'path' must be writable, got {target}")
    return target


def to_onnx(
    model: nn.Module,
    x: Tensor | tuple[Tensor, ...],
    path: str | os.PathLike[str],
    *,
    dynamic_batch: bool = True,
) -> None:
    """Write a prepared or converted model as ONNX, with its scales as Quantize/DequantizeLinear.

    A prepared model is converted first, in a copy; `model` stays as it is. The file is opset 19,
    with uint8 activations, and int8 weights per output channel with the batch norms folded in.

    Args:
        model: from `prepare_qat` (after training) or from `convert`.
        x: The model's arguments, from which the graph is traced.
        path: The file to write; an existing one is replaced when all went well.
        dynamic_batch: The first size of every input may vary, where the model lets it.

    Raises:
        ImportError: The package onnx is missing.
        TypeError, ValueError: An argument that is none of these.
        NotImplementedError: An operator without a form in ONNX, by name and layer.
        OSError: `path` cannot be written.

    Warns:
        UserWarning: A bias does not fit int32 in units of its layer's scales, by layer.
    """
    require_onnx()
    target = _check_path(path)
    arguments = as_arguments(x)
    program = trace(converted(model), arguments, dynamic_batch)
    writer = Writer()
    walk = Walk(program, writer)
    # The names of results are taken before any node asks for one.
    data = _assemble(writer, walk, type(model).__name__)
    writer.onnx.checker.check_model(data, full_check=data.ByteSize() < _CHECKED_IN_MEMORY)
    _write(data.SerializeToString(), target)


#: onnx infers shapes of models below protobuf's limit alone.
_CHECKED_IN_MEMORY = 2**31 - 2**20


def _assemble(writer: Writer, walk: Walk, name: str) -> Any:
    helper = writer.onnx.helper
    results = walk.run()
    outputs = []
    for place, result in enumerate(results):
        if isinstance(result, (int, float)) or result is None:
            continue
        hint = "output" if len(results) == 1 else f"output_{place}"
        if isinstance(result, Value):
            source, shape = result.name, result.shape
        else:
            source, shape = writer.constant(hint, result), tuple(result.shape)
        made = writer.node("Identity", [source], hint)
        outputs.append(_info(writer, Value(made, shape, result.dtype)))
    inputs = [_info(writer, value) for value in walk.inputs]
    graph = helper.make_graph(writer.nodes, name, inputs, outputs, writer.initializers)
    return helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="horizon-plugin",
        producer_version=__version__,
    )


def _info(writer: Writer, value: Value) -> Any:
    shape = [_BATCH if size is None else size for size in value.shape]
    return writer.onnx.helper.make_tensor_value_info(
        value.name, writer.element_type(value.dtype), shape
    )


def _write(data: bytes, target: Path) -> None:
    """All or nothing: a file that is being read elsewhere is never half of another."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        temporary.write_bytes(data)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
