"""DenseNet: batch norm and relu come before the convolution, and features are concatenated."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from horizon_plugin.quantization import DeQuantStub, FloatFunctional, QuantStub


class DenseLayer(nn.Module):
    """bn-relu-conv twice; its result is appended to its input."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.norm1, self.relu1 = nn.BatchNorm2d(inputs), nn.ReLU(inplace=True)
        self.conv1 = nn.Conv2d(inputs, 2 * growth, 1, bias=False)
        self.norm2, self.relu2 = nn.BatchNorm2d(2 * growth), nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(2 * growth, growth, 3, padding=1, bias=False)
        self.cat = FloatFunctional()

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(self.relu1(self.norm1(x)))
        return self.cat.cat([x, self.conv2(self.relu2(self.norm2(y)))], 1)


class Transition(nn.Sequential):
    """bn, relu, conv, halved resolution."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(
            nn.BatchNorm2d(inputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(inputs, outputs, 1, bias=False),
            nn.AvgPool2d(2, 2),
        )


class DenseNet(nn.Module):
    """Two dense blocks of two layers."""

    input_shape = (2, 3, 32, 32)
    group_count = 5  # the stem, one in each of 4 layers

    def __init__(self, growth: int = 4, classes: int = 10) -> None:
        super().__init__()
        self.quant = QuantStub()
        self.conv0 = nn.Conv2d(3, 8, 7, 2, 3, bias=False)
        self.norm0, self.relu0 = nn.BatchNorm2d(8), nn.ReLU(inplace=True)
        self.pool0 = nn.MaxPool2d(3, 2, 1)
        self.block1 = nn.Sequential(DenseLayer(8, growth), DenseLayer(8 + growth, growth))
        self.transition = Transition(8 + 2 * growth, 8)
        self.block2 = nn.Sequential(DenseLayer(8, growth), DenseLayer(8 + growth, growth))
        self.norm5, self.relu5 = nn.BatchNorm2d(8 + 2 * growth), nn.ReLU(inplace=True)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(8 + 2 * growth, classes)
        self.dequant = DeQuantStub()

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool0(self.relu0(self.norm0(self.conv0(self.quant(x)))))
        x = self.block2(self.transition(self.block1(x)))
        x = torch.flatten(self.avgpool(self.relu5(self.norm5(x))), 1)
        return self.dequant(self.classifier(x))

    def groups(self) -> list[list[str]]:
        """A batch norm in front of its convolution has none behind which it could go."""
        found = [["conv0", "norm0", "relu0"]]
        for block in ("block1", "block2"):
            for i in range(2):
                found.append([f"{block}.{i}.{name}" for name in ("conv1", "norm2", "relu2")])
        return found
