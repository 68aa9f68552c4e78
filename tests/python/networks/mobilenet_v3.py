"""MobileNetV3 with fewer stages: squeeze-and-excitation, hard swishes."""

from __future__ import annotations

from torch import Tensor, nn

from horizon_plugin.quantization import DeQuantStub, FloatFunctional, QuantStub


class SqueezeExcite(nn.Module):
    """Scales each channel by what two 1x1 convolutions make of its mean."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Conv2d(channels, squeezed, 1)
        self.activation = nn.ReLU()
        self.fc2 = nn.Conv2d(squeezed, channels, 1)
        self.scale_activation = nn.Hardsigmoid()
        self.skip_mul = FloatFunctional()

    def forward(self, x: Tensor) -> Tensor:
        scale = self.fc2(self.activation(self.fc1(self.avgpool(x))))
        return self.skip_mul.mul(self.scale_activation(scale), x)


def conv_bn_act(inputs: int, outputs: int, act: type | None, **kwargs: int) -> nn.Sequential:
    layers = [nn.Conv2d(inputs, outputs, bias=False, **kwargs), nn.BatchNorm2d(outputs)]
    return nn.Sequential(*layers, *([act()] if act else []))


class InvertedResidualV3(nn.Module):
    """Expansion, depthwise convolution, optional squeeze-and-excitation, projection."""

    __constants__ = ("residual",)

    def __init__(
        self, inputs: int, hidden: int, outputs: int, stride: int, excite: bool, act: type
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            conv_bn_act(inputs, hidden, act, kernel_size=1),
            conv_bn_act(
                hidden, hidden, act, kernel_size=5, stride=stride, padding=2, groups=hidden
            ),
        ]
        if excite:
            layers.append(SqueezeExcite(hidden, 8))
        layers.append(conv_bn_act(hidden, outputs, None, kernel_size=1))
        self.block = nn.Sequential(*layers)
        self.residual = stride == 1 and inputs == outputs
        if self.residual:
            self.skip_add = FloatFunctional()

    def forward(self, x: Tensor) -> Tensor:
        if self.residual:
            return self.skip_add.add(self.block(x), x)
        return self.block(x)


class MobileNetV3(nn.Module):
    """Four inverted residuals, two with ReLU and two with Hardswish."""

    input_shape = (2, 3, 32, 32)
    # both ends of the features; 3 in each of 4 blocks and the fc1 of 3 excitations
    group_count = 17

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.quant = QuantStub()
        self.features = nn.Sequential(
            conv_bn_act(3, 8, nn.Hardswish, kernel_size=3, stride=2, padding=1),
            InvertedResidualV3(8, 16, 8, 1, True, nn.ReLU),
            InvertedResidualV3(8, 24, 12, 2, False, nn.ReLU),
            InvertedResidualV3(12, 32, 12, 1, True, nn.Hardswish),
            InvertedResidualV3(12, 32, 16, 2, True, nn.Hardswish),
            conv_bn_act(16, 32, nn.Hardswish, kernel_size=1),
        )
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(
            nn.Linear(32, 32), nn.Hardswish(), nn.Dropout(0.2), nn.Linear(32, classes)
        )
        self.dequant = DeQuantStub()

    def forward(self, x: Tensor) -> Tensor:
        x = self.avgpool(self.features(self.quant(x))).flatten(1)
        return self.dequant(self.classifier(x))

    def groups(self) -> list[list[str]]:
        """A Hardswish stays by itself, as does the Hardsigmoid behind fc2."""
        found = []
        for name, module in self.named_modules():
            if isinstance(module, nn.Sequential) and isinstance(module[0], nn.Conv2d):
                members = [i for i, m in enumerate(module) if not isinstance(m, nn.Hardswish)]
                group = [f"{name}.{i}" for i in members]
                block = self.get_submodule(name.rsplit(".", 2)[0]) if ".block." in name else None
                if block is not None and len(module) == 2 and block.residual:
                    group.append(f"{name.rsplit('.', 2)[0]}.skip_add")
                found.append(group)
            elif isinstance(module, SqueezeExcite):
                found.append([f"{name}.fc1", f"{name}.activation"])
        return found
