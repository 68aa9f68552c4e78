"""Runs ONNX files, as they are and as onnxruntime optimizes them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import onnx
import onnxruntime
import torch
from torch import Tensor

CPU = Path("/proc/cpuinfo")
HAS_VNNI = not CPU.exists() or "vnni" in CPU.read_text()
LEVELS = {
    "as written": onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "optimized": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
}


def session(path: Path, level: str) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = LEVELS[level]
    options.optimized_model_filepath = str(path.with_suffix(f".{level}.onnx"))
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    if not HAS_VNNI:  # pairs of uint8 times int8 products would be added in 16 bits
        options.add_session_config_entry("session.x64quantprecision", "1")
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def run(path: Path, *inputs: Tensor, level: str = "optimized") -> list[Tensor]:
    made = session(path, level)
    feed = {i.name: x.numpy() for i, x in zip(made.get_inputs(), inputs, strict=True)}
    return [torch.from_numpy(y.copy()) for y in made.run(None, feed)]


def operators(path: Path) -> Counter[str]:
    """How many nodes of each kind a file has."""
    return Counter(node.op_type for node in onnx.load(path).graph.node)


def optimized_operators(path: Path) -> Counter[str]:
    """The same of what onnxruntime makes of it."""
    session(path, "optimized")
    return operators(path.with_suffix(".optimized.onnx"))


def steps_apart(a: Tensor, b: Tensor) -> Tensor:
    """How many codes apart two results on one grid are; the grid is read off the second."""
    values = b.double().flatten().unique()
    step = values.diff().min() if values.numel() > 1 else torch.tensor(1.0)
    return (a.double() - b.double()).abs() / step
