"""Small models that fuse, or must not, for the tests of finding and checking groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from networks import randomize
from torch import Tensor, nn

from horizon_plugin.quantization import FloatFunctional

X = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(1))


class Parts(nn.Module):
    """Members for the models below, each of which calls some of them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.conv2 = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 1)
        self.bn, self.bn2 = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
        self.relu, self.relu6 = nn.ReLU(), nn.ReLU6()
        self.add = FloatFunctional()
        self.kept: Any = None
        randomize(self)


class Chain(Parts):
    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.bn(self.conv(x)))


class ConvCalledTwice(Parts):
    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x) + self.bn(self.conv(2 * x))


class RawResultInSkip(Parts):
    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return self.relu(y) + y


class SharedRelu(Parts):
    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.bn2(self.conv2(self.relu(self.bn(self.conv(x))))))


class ResultReturned(Parts):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = self.conv(x)
        return {"out": self.bn(y), "raw": y}


class ResultKept(Parts):
    def forward(self, x: Tensor) -> Tensor:
        self.kept = self.conv(x)
        return self.bn(self.kept)


class ResultViewed(Parts):
    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        y.view(-1)[0] = 5.0
        return self.bn(y)


class ResultChanged(Parts):
    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        y += 1
        return self.bn(y)


class InputChanged(Parts):
    def forward(self, x: Tensor) -> Tensor:
        x = x + 0
        y = self.bn(self.conv(x))
        x.mul_(2)
        return self.add.add(y, x)


class InputChangedByModule(Parts):
    def __init__(self) -> None:
        super().__init__()
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0
        y = self.bn(self.conv(x))
        return self.add.add(y, self.relu(x))


class ShapeBeforeAdd(Parts):
    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        n = y.shape[0]
        return self.add.add(y, x).reshape(n, -1)


class WrongBatchNorm(Parts):
    def forward(self, x: Tensor) -> Tensor:
        return self.bn2(self.conv(x)) + self.bn(self.conv2(x))


class FunctionalRelu(Parts):
    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn(self.conv(x)))


class RawAdd(Parts):
    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.conv(x) + x)


# Model, names, and what the refusal must say.
UNSAFE = [
    (
        ConvCalledTwice,
        ["conv", "bn"],
        r"'conv' is called 2 times, and at call 1 .* \+ in the",
    ),
    (
        RawResultInSkip,
        ["conv", "relu"],
        r"'conv': its result is used 2 times: 'relu' \(ReLU\) and \+ in the model's forward",
    ),
    (SharedRelu, ["conv", "bn", "relu"], r"'relu' is called 2 times \(on 'bn' .* and 'bn2' "),
    (ResultReturned, ["conv", "bn"], r"'bn' \(BatchNorm2d\) and the model's output"),
    (ResultKept, ["conv", "bn"], "an attribute of a module that keeps it"),
    (ResultViewed, ["conv", "bn"], r"'conv': its result goes to view in the model's forward"),
    (ResultChanged, ["conv", "bn"], r"'conv': its result goes to \+= in the model's forward"),
    (InputChanged, ["conv", "bn", "add"], "the input of 'conv' is changed in place before 'add'"),
    (InputChangedByModule, ["conv", "bn", "add"], "the input of 'conv' is changed in place"),
    (ShapeBeforeAdd, ["conv", "add"], r"used 2 times: shape in the model's forward and 'add'"),
    (WrongBatchNorm, ["conv", "bn"], r"'conv': its result goes to 'bn2' \(BatchNorm2d\), not to"),
    (FunctionalRelu, ["conv", "relu"], r"goes to 'bn' \(BatchNorm2d\), not to 'relu'"),
    (
        RawAdd,
        ["conv", "add"],
        r"'conv': its result goes to \+ in the model's forward, not to",
    ),
]


@dataclass
class Boxes:
    scores: Tensor
    rest: list[Any]


class Nested(Parts):
    """Takes a dict and a list, returns a dataclass with nested tensors."""

    def forward(self, images: dict[str, Tensor], extra: list[Tensor], *, scale: float) -> Boxes:
        y = self.relu(self.bn(self.conv(images["left"])))
        z = self.bn2(self.conv2(extra[0])) * scale
        return Boxes(y, [{"z": z}, (y.mean(), None, "text")])


class Head(nn.Module):
    """One tower at three levels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.relu = nn.Conv2d(3, 3, 3), nn.BatchNorm2d(3), nn.ReLU()

    def forward(self, levels: list[Tensor]) -> list[Tensor]:
        return [self.relu(self.bn(self.conv(x))) for x in levels]


class RawResNet(nn.Module):
    """ResNet-18's block structure in plain PyTorch: ``+=``, F.relu, one relu for a block."""

    class Block(nn.Module):
        def __init__(self, inputs: int, outputs: int, stride: int) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
            self.bn1 = nn.BatchNorm2d(outputs)
            self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
            self.bn2 = nn.BatchNorm2d(outputs)
            self.relu = nn.ReLU(inplace=True)
            self.drop = nn.Identity()
            self.down: nn.Module | None = None
            if stride != 1 or inputs != outputs:
                self.down = nn.Sequential(
                    nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
                )

        def forward(self, x: Tensor) -> Tensor:
            skip = x if self.down is None else self.down(x)
            y = self.relu(self.bn1(self.conv1(x)))
            y = self.drop(self.bn2(self.conv2(y)))
            y += skip
            return self.relu(y)

    def __init__(self, quant: nn.Module, dequant: nn.Module) -> None:
        super().__init__()
        self.quant, self.dequant = quant, dequant
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8)
        self.pool = nn.MaxPool2d(3, 2, 1)
        blocks, inputs = [], 8
        for i, outputs in enumerate((8, 16, 32, 64)):
            blocks += [self.Block(inputs, outputs, 1 if i == 0 else 2)]
            blocks += [self.Block(outputs, outputs, 1)]
            inputs = outputs
        self.layers = nn.Sequential(*blocks)
        self.average, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(64, 10)
        randomize(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(F.relu(self.bn1(self.conv1(self.quant(x)))))
        return self.dequant(self.fc(torch.flatten(self.average(self.layers(x)), 1)))
