"""ResNet-18 and ResNet-50 at a fraction of their width."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from horizon_plugin.quantization import DeQuantStub, FloatFunctional, QuantStub


class BasicBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu1 = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )
        self.add = FloatFunctional()
        self.relu2 = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        identity = self.downsample(x)
        y = self.relu1(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return self.relu2(self.add.add(y, identity))


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1, four times as many channels out; the stride is in the 3x3."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu1 = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu2 = nn.ReLU(inplace=True)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )
        self.add = FloatFunctional()
        self.relu3 = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        identity = self.downsample(x)
        y = self.relu1(self.bn1(self.conv1(x)))
        y = self.relu2(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return self.relu3(self.add.add(y, identity))


def block_groups(name: str, block: nn.Module) -> list[list[str]]:
    """Every convolution leads a group; the last one of the branch takes the add."""
    count = 3 if isinstance(block, Bottleneck) else 2
    found = [[f"{name}.{kind}{i}" for kind in ("conv", "bn", "relu")] for i in range(1, count)]
    found.append([f"{name}.conv{count}", f"{name}.bn{count}", f"{name}.add", f"{name}.relu{count}"])
    if isinstance(block.downsample, nn.Sequential):
        found.append([f"{name}.downsample.0", f"{name}.downsample.1"])
    return found


class ResNet(nn.Module):
    """Stem, four stages of blocks, pooling, classifier."""

    input_shape = (2, 3, 32, 32)

    def __init__(self, stages: list[list[nn.Module]], width: int, outputs: int, classes: int):
        super().__init__()
        self.quant = QuantStub()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layers = nn.Sequential(*(nn.Sequential(*blocks) for blocks in stages))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(outputs, classes)
        self.dequant = DeQuantStub()

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(self.quant(x)))))
        x = torch.flatten(self.avgpool(self.layers(x)), 1)
        return self.dequant(self.fc(x))

    def groups(self) -> list[list[str]]:
        """All convolutions; the classifier has nothing behind it."""
        found = [["conv1", "bn1", "relu"]]
        for name, module in self.named_modules():
            if isinstance(module, (BasicBlock, Bottleneck)):
                found += block_groups(name, module)
        return found


class ResNet18(ResNet):
    """ResNet-18 at 1/8 of its width."""

    group_count = 20  # the stem, 2 in each of 8 blocks, 3 downsamples

    def __init__(self, width: int = 8, classes: int = 10) -> None:
        stages, inputs = [], width
        for i, outputs in enumerate((width, 2 * width, 4 * width, 8 * width)):
            first = BasicBlock(inputs, outputs, 1 if i == 0 else 2)
            stages.append([first, BasicBlock(outputs, outputs, 1)])
            inputs = outputs
        super().__init__(stages, width, inputs, classes)


class ResNet50(ResNet):
    """ResNet-50 at 1/16 of its width."""

    group_count = 53  # the stem, 3 in each of 16 blocks, 4 downsamples

    def __init__(self, width: int = 4, classes: int = 10) -> None:
        stages, inputs = [], width
        for i, count in enumerate((3, 4, 6, 3)):
            inner = width * 2**i
            blocks: list[nn.Module] = [Bottleneck(inputs, inner, 1 if i == 0 else 2)]
            blocks += [Bottleneck(4 * inner, inner, 1) for _ in range(count - 1)]
            stages.append(blocks)
            inputs = 4 * inner
        super().__init__(stages, width, inputs, classes)
