"""MobileNetV2 with fewer and narrower stages."""

from __future__ import annotations

from torch import Tensor, nn

from horizon_plugin.quantization import DeQuantStub, FloatFunctional, QuantStub


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
    """Five inverted residuals of MobileNetV2, narrow."""

    input_shape = (2, 3, 32, 32)
    group_count = 16  # both ends, 2 in the block that does not expand, 3 in each of the other 4

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
