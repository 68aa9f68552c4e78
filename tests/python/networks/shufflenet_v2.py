"""ShuffleNetV2: channels are split, concatenated and shuffled."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from horizon_plugin.quantization import DeQuantStub, FloatFunctional, QuantStub


def shuffle(x: Tensor) -> Tensor:
    """Interleave the two halves of the channels."""
    n, channels, height, width = x.shape
    x = x.view(n, 2, channels // 2, height, width)
    return torch.transpose(x, 1, 2).contiguous().view(n, channels, height, width)


def depthwise(channels: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(channels, channels, 3, stride, 1, groups=channels, bias=False)


class ShuffleUnit(nn.Module):
    """One half of the channels passes, or both take a branch with stride 2."""

    __constants__ = ("stride",)

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        half = outputs // 2
        first = inputs if stride > 1 else half
        self.branch1 = nn.Sequential()
        if stride > 1:
            self.branch1 = nn.Sequential(
                depthwise(inputs, stride),
                nn.BatchNorm2d(inputs),
                nn.Conv2d(inputs, half, 1, bias=False),
                nn.BatchNorm2d(half),
                nn.ReLU(inplace=True),
            )
        self.branch2 = nn.Sequential(
            nn.Conv2d(first, half, 1, bias=False),
            nn.BatchNorm2d(half),
            nn.ReLU(inplace=True),
            depthwise(half, stride),
            nn.BatchNorm2d(half),
            nn.Conv2d(half, half, 1, bias=False),
            nn.BatchNorm2d(half),
            nn.ReLU(inplace=True),
        )
        self.cat = FloatFunctional()

    def forward(self, x: Tensor) -> Tensor:
        if self.stride == 1:
            x1, x2 = x.chunk(2, dim=1)
            return shuffle(self.cat.cat([x1, self.branch2(x2)], 1))
        return shuffle(self.cat.cat([self.branch1(x), self.branch2(x)], 1))


class ShuffleNetV2(nn.Module):
    """Two stages of two units."""

    input_shape = (2, 3, 32, 32)
    # both ends; 3 in the branch that every unit has, 2 more where it strides
    group_count = 18

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.quant = QuantStub()
        self.conv1 = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True)
        )
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.stage2 = nn.Sequential(ShuffleUnit(8, 16, 2), ShuffleUnit(16, 16, 1))
        self.stage3 = nn.Sequential(ShuffleUnit(16, 24, 2), ShuffleUnit(24, 24, 1))
        self.conv5 = nn.Sequential(
            nn.Conv2d(24, 32, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU(inplace=True)
        )
        self.mean = FloatFunctional()
        self.fc = nn.Linear(32, classes)
        self.dequant = DeQuantStub()

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.conv1(self.quant(x)))
        x = self.conv5(self.stage3(self.stage2(x)))
        return self.dequant(self.fc(self.mean.mean(x, [2, 3])))

    def groups(self) -> list[list[str]]:
        """Every convolution, with the relu where there is one."""
        found = [["conv1.0", "conv1.1", "conv1.2"], ["conv5.0", "conv5.1", "conv5.2"]]
        for name, unit in self.named_modules():
            if isinstance(unit, ShuffleUnit):
                groups = [("branch2", (0, 1, 2)), ("branch2", (3, 4)), ("branch2", (5, 6, 7))]
                if unit.stride > 1:
                    groups += [("branch1", (0, 1)), ("branch1", (2, 3, 4))]
                found += [[f"{name}.{branch}.{i}" for i in ids] for branch, ids in groups]
        return found
