"""The networks that tests run: torchvision's designs, narrow, with FloatFunctional adds."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from horizon_plugin.quantization import DeQuantStub, FloatFunctional, QuantStub


def randomize(model: nn.Module) -> nn.Module:
    """Batch norms as after training, so that axis errors show; weights of a sensible size."""
    for module in model.modules():
        if isinstance(module, (nn.BatchNorm2d, nn.BatchNorm1d)):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -0.5, 0.5)
            nn.init.uniform_(module.running_mean, -0.3, 0.3)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
    return model


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


class ResNet18(nn.Module):
    """ResNet-18 at 1/8 of its width."""

    def __init__(self, width: int = 8, classes: int = 10) -> None:
        super().__init__()
        self.quant = QuantStub()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        layers, inputs = [], width
        for i, outputs in enumerate((width, 2 * width, 4 * width, 8 * width)):
            layers.append(
                nn.Sequential(
                    BasicBlock(inputs, outputs, 1 if i == 0 else 2), BasicBlock(outputs, outputs, 1)
                )
            )
            inputs = outputs
        self.layers = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(inputs, classes)
        self.dequant = DeQuantStub()

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(self.quant(x)))))
        x = torch.flatten(self.avgpool(self.layers(x)), 1)
        return self.dequant(self.fc(x))

    def groups(self) -> list[list[str]]:
        found = [["conv1", "bn1", "relu"]]
        for name, module in self.named_modules():
            if isinstance(module, BasicBlock):
                found.append([f"{name}.conv1", f"{name}.bn1", f"{name}.relu1"])
                found.append([f"{name}.conv2", f"{name}.bn2", f"{name}.add", f"{name}.relu2"])
                if isinstance(module.downsample, nn.Sequential):
                    found.append([f"{name}.downsample.0", f"{name}.downsample.1"])
        return found


class InvertedResidual(nn.Module):
    __constants__ = ("residual",)

    def __init__(self, inputs: int, outputs: int, stride: int, expand: int) -> None:
        super().__init__()
        hidden = inputs * expand
        layers: list[nn.Module] = []
        if expand != 1:
            layers += [nn.Conv2d(inputs, hidden, 1, bias=False), nn.BatchNorm2d(hidden), nn.ReLU6()]
        layers += [
            nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False),
            nn.BatchNorm2d(hidden),
            nn.ReLU6(),
            nn.Conv2d(hidden, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        ]
        self.conv = nn.Sequential(*layers)
        self.residual = stride == 1 and inputs == outputs
        if self.residual:
            self.skip_add = FloatFunctional()

    def forward(self, x: Tensor) -> Tensor:
        if self.residual:
            return self.skip_add.add(x, self.conv(x))
        return self.conv(x)


class MobileNetV2(nn.Module):
    """MobileNetV2 with fewer and narrower stages."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.quant = QuantStub()
        features: list[nn.Module] = [
            nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU6())
        ]
        for inputs, outputs, stride, expand in (
            (8, 8, 1, 1),
            (8, 12, 2, 6),
            (12, 12, 1, 6),
            (12, 16, 2, 6),
            (16, 16, 1, 6),
        ):
            features.append(InvertedResidual(inputs, outputs, stride, expand))
        features.append(
            nn.Sequential(nn.Conv2d(16, 32, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU6())
        )
        self.features = nn.Sequential(*features)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(32, classes))
        self.dequant = DeQuantStub()

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(self.quant(x))
        x = self.pool(x).reshape(x.shape[0], -1)
        return self.dequant(self.classifier(x))

    def groups(self) -> list[list[str]]:
        found = []
        for name, module in self.features.named_children():
            prefix = f"features.{name}"
            if isinstance(module, nn.Sequential):
                found.append([f"{prefix}.{i}" for i in range(3)])
                continue
            count = len(module.conv)
            for i in range(0, count - 2, 3):
                found.append([f"{prefix}.conv.{i + j}" for j in range(3)])
            last = [f"{prefix}.conv.{count - 2}", f"{prefix}.conv.{count - 1}"]
            found.append([*last, f"{prefix}.skip_add"] if module.residual else last)
        return found


class DoubleConv(nn.Sequential):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
        )


class UNet(nn.Module):
    """Two levels; transposed convolutions on the way up, concatenated skips."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.quant = QuantStub()
        self.enter = DoubleConv(3, width)
        self.pool = nn.MaxPool2d(2)
        self.down1 = DoubleConv(width, 2 * width)
        self.down2 = DoubleConv(2 * width, 4 * width)
        self.up1 = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.cat1 = FloatFunctional()
        self.merge1 = DoubleConv(4 * width, 2 * width)
        self.up2 = nn.ConvTranspose2d(2 * width, width, 2, stride=2, bias=False)
        self.up2_bn = nn.BatchNorm2d(width)
        self.up2_act = nn.ReLU6()
        self.cat2 = FloatFunctional()
        self.merge2 = DoubleConv(2 * width, width)
        self.exit = nn.Conv2d(width, 2, 1)
        self.dequant = DeQuantStub()

    def forward(self, x: Tensor) -> Tensor:
        a = self.enter(self.quant(x))
        b = self.down1(self.pool(a))
        c = self.down2(self.pool(b))
        y = self.merge1(self.cat1.cat([self.up1(c), b], 1))
        y = self.up2_act(self.up2_bn(self.up2(y)))
        y = self.merge2(self.cat2.cat([y, a], 1))
        return self.dequant(self.exit(y))

    def groups(self) -> list[list[str]]:
        found = [["up2", "up2_bn", "up2_act"]]
        for name in ("enter", "down1", "down2", "merge1", "merge2"):
            found.append([f"{name}.{i}" for i in (0, 1, 2)])
            found.append([f"{name}.{i}" for i in (3, 4, 5)])
        return found


NETWORKS = {"resnet18": ResNet18, "mobilenet_v2": MobileNetV2, "unet": UNet}
