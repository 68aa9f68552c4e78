"""What a converted layer costs besides its arithmetic: networks on images of a few pixels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from common import describe, finish, interleave, machine, parser, table
from models import MobileNetV2, ResNet18
from stages import converted, settle, traced
from torch import nn

from horizon_plugin.nn._layer import ConvertedLayer

#: name -> float model; narrow or slender, so that little but overhead is left.
MODELS: dict[str, Callable[[], nn.Module]] = {
    "resnet18": lambda: ResNet18(width=8),
    "mobilenet_v2": MobileNetV2,
}


def _layers(model: nn.Module) -> int:
    return sum(isinstance(m, ConvertedLayer) for m in model.modules())


def _operators(trace: Any) -> dict[str, int]:
    """How often each operator stands in the trace, constants and lists left out."""
    counts: dict[str, int] = {}
    for node in trace.inlined_graph.nodes():
        kind = node.kind()
        if not kind.startswith("prim::"):
            counts[kind] = counts.get(kind, 0) + 1
    return counts


def main() -> None:
    """Run the benchmark."""
    options = parser(__doc__ or "", rounds=20)
    options.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    print(describe(machine()) + "\n")
    results = []
    for name in given.models:
        images = torch.randn(8, 3, 32, 32).to(memory_format=torch.channels_last)
        x = images[:1].clone(memory_format=torch.channels_last)
        int8 = converted(settle(MODELS[name](), images), images)
        trace = traced(int8, x)
        frozen = traced(int8, x, freeze=True)
        with torch.inference_mode():
            calls = {"eager": int8, "traced": trace, "traced, frozen": frozen}
            times = interleave({k: (lambda c=c, x=x: c(x)) for k, c in calls.items()}, given.rounds)
        count = _layers(int8)
        rows = (
            (k, f"{t * 1e6:.0f}", f"{(t - times['traced, frozen']) / count * 1e6:.2f}")
            for k, t in times.items()
        )
        title = f"{name}, 3x32x32, {count} converted layers"
        print(table(title, ("", "us", "us a layer over frozen"), rows))
        operators = _operators(trace)
        print("operators in the trace: " + ", ".join(f"{n} {k}" for k, n in operators.items()))
        print()
        results.append({"model": name, "seconds": times, "operators": operators})
    finish("overhead", results, given.json)


if __name__ == "__main__":
    main()
