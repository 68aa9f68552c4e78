"""How long `fuse_modules` takes on models of many modules: 1 s for 10,000, and linear."""

from __future__ import annotations

import gc
import time
from typing import Any

import common
import torch
from torch import nn

from horizon_plugin.quantization import FloatFunctional, fuse_modules


class Block(nn.Module):
    """Five modules that fuse, within one that does not."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.act1 = nn.Conv2d(1, 1, 1), nn.ReLU()
        self.conv2, self.bn2, self.add = nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1), FloatFunctional()


def flat(modules: int) -> tuple[nn.Module, list[list[str]]]:
    """One Sequential of conv, bn, relu."""
    layers: list[nn.Module] = []
    for _ in range(modules // 3):
        layers += [nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1), nn.ReLU()]
    groups = [[str(i + j) for j in range(3)] for i in range(0, len(layers), 3)]
    return nn.Sequential(*layers), groups


def nested(modules: int) -> tuple[nn.Module, list[list[str]]]:
    """Residual blocks in a list, two groups in each."""
    count = modules // 6
    groups = []
    for i in range(count):
        groups.append([f"{i}.conv1", f"{i}.act1"])
        groups.append([f"{i}.conv2", f"{i}.bn2", f"{i}.add"])
    return nn.ModuleList(Block() for _ in range(count)), groups


def seconds(make: Any, modules: int, training: bool, rounds: int) -> float:
    """The fastest of several runs, each on a model of its own."""
    best = float("inf")
    for _ in range(rounds):
        model, groups = make(modules)
        model.train(training)
        gc.collect()
        start = time.perf_counter()
        fuse_modules(model, groups, inplace=True)
        best = min(best, time.perf_counter() - start)
    return best


def main() -> None:
    """Print the table."""
    options = common.parser(__doc__ or "", rounds=3).parse_args()
    torch.set_num_threads(options.threads)
    results, rows = [], []
    for make in (flat, nested):
        for mode, training in (("live", True), ("folded", False)):
            for modules in (1_000, 10_000, 30_000):
                taken = seconds(make, modules, training, options.rounds)
                case = {"model": make.__name__, "batch_norms": mode, "modules": modules}
                results.append({**case, "seconds": taken})
                rows.append([*case.values(), f"{taken:.3f}", f"{taken / modules * 1e6:.1f}"])
    header = ["model", "batch norms", "modules", "s", "us/module"]
    print(common.describe(common.machine()))
    print(common.table("fuse_modules, in place", header, rows))
    common.finish("fuse", results, options.json)


if __name__ == "__main__":
    main()
