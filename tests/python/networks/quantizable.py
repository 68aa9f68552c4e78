"""Blocks as torchvision's quantizable models write them, with the names they have there."""

from __future__ import annotations

from torch import Tensor, nn

from horizon_plugin.quantization import DeQuantStub, FloatFunctional, QuantStub


def downsampling(inputs: int, outputs: int, stride: int) -> nn.Sequential | None:
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


class QuantizableBasicBlock(nn.Module):
    """The relu behind the add is in `add_relu`; the downsample is called last."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1, self.relu = nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = downsampling(inputs, outputs, stride)
        self.add_relu = FloatFunctional()

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        if self.downsample is not None:
            identity = self.downsample(x)
        return self.add_relu.add_relu(y, identity)


class QuantizableBottleneck(nn.Module):
    """As the basic block, with `skip_add_relu` behind three convolutions."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1, self.relu1 = nn.BatchNorm2d(width), nn.ReLU()
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2, self.relu2 = nn.BatchNorm2d(width), nn.ReLU()
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.downsample = downsampling(inputs, 4 * width, stride)
        self.skip_add_relu = FloatFunctional()

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        y = self.relu1(self.bn1(self.conv1(x)))
        y = self.relu2(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        if self.downsample is not None:
            identity = self.downsample(x)
        return self.skip_add_relu.add_relu(y, identity)


class QuantizableInvertedResidual(nn.Module):
    """Convolution, batch norm and relu are one level deeper than the last two layers."""

    __constants__ = ("residual",)

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        hidden = 3 * inputs
        self.conv = nn.Sequential(
            nn.Sequential(
                nn.Conv2d(inputs, hidden, 1, bias=False), nn.BatchNorm2d(hidden), nn.ReLU()
            ),
            nn.Sequential(
                nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False),
                nn.BatchNorm2d(hidden),
                nn.ReLU(),
            ),
            nn.Conv2d(hidden, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.residual = stride == 1 and inputs == outputs
        self.skip_add = FloatFunctional()

    def forward(self, x: Tensor) -> Tensor:
        if self.residual:
            return self.skip_add.add(x, self.conv(x))
        return self.conv(x)


class QuantizableNet(nn.Module):
    """Two blocks of each kind, the second of them with the identity as its skip."""

    input_shape = (2, 3, 16, 16)
    # the stem; 2 + 1 and 2, 3 + 1 and 3, 3 and 3
    group_count = 19

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.quant = QuantStub()
        self.conv1 = nn.Conv2d(3, 8, 3, 2, 1, bias=False)
        self.bn1, self.relu = nn.BatchNorm2d(8), nn.ReLU(inplace=True)
        self.blocks = nn.Sequential(
            QuantizableBasicBlock(8, 12, 2),
            QuantizableBasicBlock(12, 12, 1),
            QuantizableBottleneck(12, 4, 1),
            QuantizableBottleneck(16, 4, 1),
            QuantizableInvertedResidual(16, 12, 2),
            QuantizableInvertedResidual(12, 12, 1),
        )
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(12, classes)
        self.dequant = DeQuantStub()

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.relu(self.bn1(self.conv1(self.quant(x)))))
        return self.dequant(self.fc(self.avgpool(x).flatten(1)))

    def groups(self) -> list[list[str]]:
        """Where both operands of an add are convolutions, the one that is called last takes it."""
        found = [["conv1", "bn1", "relu"]]
        for i, block in enumerate(self.blocks):
            name = f"blocks.{i}"
            if isinstance(block, QuantizableInvertedResidual):
                found += [[f"{name}.conv.{k}.{j}" for j in range(3)] for k in range(2)]
                last = [f"{name}.conv.2", f"{name}.conv.3"]
                found.append([*last, f"{name}.skip_add"] if block.residual else last)
                continue
            if isinstance(block, QuantizableBasicBlock):
                found.append([f"{name}.{member}" for member in ("conv1", "bn1", "relu")])
                last, add = [f"{name}.conv2", f"{name}.bn2"], f"{name}.add_relu"
            else:
                for k in (1, 2):
                    found.append([f"{name}.{kind}{k}" for kind in ("conv", "bn", "relu")])
                last, add = [f"{name}.conv3", f"{name}.bn3"], f"{name}.skip_add_relu"
            if block.downsample is None:
                found.append([*last, add])
            else:
                found += [last, [f"{name}.downsample.0", f"{name}.downsample.1", add]]
        return found
