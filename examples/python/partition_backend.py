"""Hands every group of a partitioned network to a backend: the hook that a vendor's compiler needs.

A backend is a function of a `Group`. It returns a ScriptModule to run in the group's place, or None
to leave the group as it is. This one "compiles" the groups that a convolution begins: what runs is
the group's own graph between two quantizers, as a stand-in for a call of the vendor's runtime.
"""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

import horizon_plugin as horizon

warnings.filterwarnings("ignore", r".*torch\.jit", DeprecationWarning)
warnings.filterwarnings("ignore", r".*torch\.jit", FutureWarning)


class Residual(nn.Module):
    """A network with a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.body = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Ten scores an image."""
        x = self.stem(x).relu()
        x = (self.body(x) + x).relu()
        return self.head(x.mean((2, 3)))


class Compiled(nn.Module):
    """The group in the arithmetic of the device: inputs and results on a grid of 1/16."""

    def __init__(self, group: nn.Module) -> None:
        super().__init__()
        self.group = group

    def forward(self, entry: Tensor) -> Tensor:
        """What the group computes, rounded to the grid."""
        entry = torch.fake_quantize_per_tensor_affine(entry, 1 / 16, 0, -128, 127)
        result = self.group(entry)
        return torch.fake_quantize_per_tensor_affine(result, 1 / 16, 0, -128, 127)


def backend(group: horizon.jit.Group) -> torch.jit.ScriptModule | None:
    kinds = ", ".join(node.kind() for node in group.nodes)
    if group.anchor is None or len(group.entries) != 1:
        print(f"group {group.index} stays float: {kinds}")
        return None
    print(f"group {group.index} is compiled:   {kinds}")
    weight = list(group.anchor.inputs())[1].toIValue()
    example = torch.randn(1, weight.size(1), 8, 8)
    return torch.jit.trace(Compiled(group.module()), example)


def main() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 3, 16, 16)
    script = torch.jit.trace(Residual().eval(), x)
    made = horizon.jit.partition(script)
    compiled = horizon.jit.delegate(made, backend)
    print(f"largest difference from float: {(compiled(x) - script(x)).abs().max():.3f}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "compiled.pt")
        horizon.jit.save(compiled, path)
        same = torch.equal(horizon.jit.load(path)(x), compiled(x))
    print("the file computes", "the same bits" if same else "SOMETHING ELSE")


if __name__ == "__main__":
    main()
