"""int8 inference against float and against other ways to run it, interleaved in one run."""

from __future__ import annotations

import argparse
import copy
from typing import Any

import torch
from baselines import BASELINES, Missing
from common import Call, describe, finish, interleave, machine, parser, table
from layers import layer_table
from models import INFERENCE
from stages import converted, file_bytes, memory_bytes, settle, traced
from torch import Tensor, nn

FLOAT = ("float channels_last", "float contiguous")


def _without_grad(call: Any, x: Tensor) -> Call:
    def run() -> None:
        with torch.inference_mode():
            call(x)

    return run


def _ours(model: nn.Module, x: Tensor, calls: dict[str, Call]) -> dict[str, Any]:
    """Adds our forms to `calls`; returns what they weigh."""
    int8 = converted(model, x)
    trace = traced(int8, x)
    calls["int8 eager"] = _without_grad(int8, x)
    calls["int8 traced"] = _without_grad(trace, x)
    calls["int8 traced, frozen"] = _without_grad(traced(int8, x, freeze=True), x)
    float_trace = traced(model, x)
    return {
        "memory_bytes": memory_bytes(int8),
        "float_memory_bytes": memory_bytes(model),
        "file_bytes": file_bytes(trace),
        "float_file_bytes": file_bytes(float_trace),
    }


def _measure(name: str, batch: int, options: argparse.Namespace) -> dict[str, Any]:
    build, size = INFERENCE[name]
    torch.manual_seed(0)
    contiguous = torch.randn(batch, 3, options.size or size, options.size or size)
    x = contiguous.to(memory_format=torch.channels_last)
    model = settle(build(), x)
    last = settle(build(), x).to(memory_format=torch.channels_last)
    calls = {
        FLOAT[0]: _without_grad(last, x),
        FLOAT[1]: _without_grad(model, contiguous),
        "float frozen": _without_grad(traced(last, x, freeze=True), x),
    }
    weight = _ours(last, x, calls)
    for label, (make, channels_last) in BASELINES.items():
        if label in options.skip:
            continue
        images = x if channels_last else contiguous
        try:
            calls[label] = _without_grad(
                make(copy.deepcopy(last if channels_last else model), images), images
            )
        except (Missing, ImportError) as reason:
            print(f"{label} left out: {reason}")
    times = interleave(calls, options.rounds, 0.1)
    reference = min(times[label] for label in FLOAT)
    print(
        table(
            f"{name}, batch {batch}, 3x{x.shape[2]}x{x.shape[3]}",
            ("", "ms", "/ float"),
            ((k, f"{t * 1e3:.2f}", f"{t / reference:.3f}") for k, t in times.items()),
        )
    )
    print(
        f"memory {weight['memory_bytes'] / weight['float_memory_bytes']:.3f} of float, "
        f"file {weight['file_bytes'] / weight['float_file_bytes']:.3f} of float\n"
    )
    if options.layers:
        print(layer_table(converted(last, x), last, x, options.rounds))
    return {"model": name, "batch": batch, "seconds": times, **weight}


def main() -> None:
    """Run the benchmark."""
    options = parser(__doc__ or "", rounds=8)
    options.add_argument("--models", nargs="+", default=list(INFERENCE), choices=list(INFERENCE))
    options.add_argument("--batch", nargs="+", type=int, default=[1, 16])
    options.add_argument("--size", type=int, help="of the images, instead of each model's own")
    options.add_argument("--skip", nargs="*", default=[], choices=list(BASELINES))
    options.add_argument("--layers", action="store_true", help="time every layer by itself")
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    print(describe(machine()) + "\n")
    results = [_measure(name, batch, given) for name in given.models for batch in given.batch]
    finish("inference", results, given.json)


if __name__ == "__main__":
    main()
