"""The networks that benchmarks run, in the designs of their papers, with FloatFunctional adds.

Weights are random: speed and memory do not depend on them.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from horizon_plugin.quantization import DeQuantStub, FloatFunctional, QuantStub

Groups = list[list[str]]


class BasicBlock(nn.Module):
    """conv-bn-relu, conv-bn-add-relu."""

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
        """``relu(bn(conv(relu(bn(conv(x))))) + downsample(x))``."""
        identity = self.downsample(x)
        y = self.bn2(self.conv2(self.relu1(self.bn1(self.conv1(x)))))
        return self.relu2(self.add.add(y, identity))


class ResNet18(nn.Module):
    """ResNet-18.

    Args:
        width: channels of the first stage.
        small_images: a 3x3 stem of stride 1 without pooling, as is usual for images below 100
            pixels, instead of 7x7 of stride 2 and a max pool.
    """

    def __init__(
        self, width: int = 64, classes: int = 1000, small_images: bool = False, inputs: int = 3
    ) -> None:
        super().__init__()
        self.quant = QuantStub()
        kernel, stride = (3, 1) if small_images else (7, 2)
        self.conv1 = nn.Conv2d(inputs, width, kernel, stride, kernel // 2, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.Identity() if small_images else nn.MaxPool2d(3, 2, 1)
        blocks: list[nn.Module] = []
        channels = width
        for i, outputs in enumerate((width, 2 * width, 4 * width, 8 * width)):
            blocks.append(BasicBlock(channels, outputs, 1 if i == 0 else 2))
            blocks.append(BasicBlock(outputs, outputs, 1))
            channels = outputs
        self.blocks = nn.Sequential(*blocks)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, classes)
        self.dequant = DeQuantStub()

    def forward(self, x: Tensor) -> Tensor:
        """``[N, 3, H, W]`` to ``[N, classes]``."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(self.quant(x)))))
        x = torch.flatten(self.avgpool(self.blocks(x)), 1)
        return self.dequant(self.fc(x))

    def groups(self) -> Groups:
        """What `fuse_modules` takes."""
        found = [["conv1", "bn1", "relu"]]
        for i, block in enumerate(self.blocks):
            name = f"blocks.{i}"
            found.append([f"{name}.conv1", f"{name}.bn1", f"{name}.relu1"])
            found.append([f"{name}.conv2", f"{name}.bn2", f"{name}.add", f"{name}.relu2"])
            if isinstance(block.downsample, nn.Sequential):
                found.append([f"{name}.downsample.0", f"{name}.downsample.1"])
        return found


def _conv_bn_relu6(inputs: int, outputs: int, kernel: int, stride: int, groups: int) -> list:
    return [
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU6(inplace=True),
    ]


class InvertedResidual(nn.Module):
    """Expand, depthwise, project; an add where the shapes agree."""

    def __init__(self, inputs: int, outputs: int, stride: int, expand: int) -> None:
        super().__init__()
        hidden = inputs * expand
        layers: list[nn.Module] = []
        if expand != 1:
            layers += _conv_bn_relu6(inputs, hidden, 1, 1, 1)
        layers += _conv_bn_relu6(hidden, hidden, 3, stride, hidden)
        layers += [nn.Conv2d(hidden, outputs, 1, bias=False), nn.BatchNorm2d(outputs)]
        self.conv = nn.Sequential(*layers)
        self.residual = stride == 1 and inputs == outputs
        if self.residual:
            self.skip_add = FloatFunctional()

    def forward(self, x: Tensor) -> Tensor:
        """The block's result."""
        if self.residual:
            return self.skip_add.add(x, self.conv(x))
        return self.conv(x)


#: expand, channels, repeats, stride of each stage of MobileNetV2.
_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class MobileNetV2(nn.Module):
    """MobileNetV2 at width 1.

    Args:
        small_images: stem and first two stages of stride 1.
    """

    def __init__(self, classes: int = 1000, small_images: bool = False) -> None:
        super().__init__()
        self.quant = QuantStub()
        channels = 32
        features: list[nn.Module] = [
            nn.Sequential(*_conv_bn_relu6(3, channels, 3, 1 if small_images else 2, 1))
        ]
        for stage, (expand, outputs, repeats, first_stride) in enumerate(_STAGES):
            for i in range(repeats):
                stride = first_stride if i == 0 and not (small_images and stage < 2) else 1
                features.append(InvertedResidual(channels, outputs, stride, expand))
                channels = outputs
        features.append(nn.Sequential(*_conv_bn_relu6(channels, 1280, 1, 1, 1)))
        self.features = nn.Sequential(*features)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, classes))
        self.dequant = DeQuantStub()

    def forward(self, x: Tensor) -> Tensor:
        """``[N, 3, H, W]`` to ``[N, classes]``."""
        x = torch.flatten(self.pool(self.features(self.quant(x))), 1)
        return self.dequant(self.classifier(x))

    def groups(self) -> Groups:
        """What `fuse_modules` takes."""
        found: Groups = []
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
    """Two conv-bn-relu."""

    def __init__(self, inputs: int, outputs: int) -> None:
        layers: list[nn.Module] = []
        for channels in (inputs, outputs):
            layers += [
                nn.Conv2d(channels, outputs, 3, padding=1, bias=False),
                nn.BatchNorm2d(outputs),
                nn.ReLU(inplace=True),
            ]
        super().__init__(*layers)


class UNet(nn.Module):
    """A U-Net of three levels: transposed convolutions, concatenated skips."""

    def __init__(self, width: int = 32, classes: int = 2) -> None:
        super().__init__()
        self.quant = QuantStub()
        self.enter = DoubleConv(3, width)
        self.pool = nn.MaxPool2d(2)
        self.down = nn.ModuleList(DoubleConv(width << i, width << (i + 1)) for i in range(3))
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(width << (i + 1), width << i, 2, 2) for i in reversed(range(3))
        )
        self.cats = nn.ModuleList(FloatFunctional() for _ in range(3))
        self.merge = nn.ModuleList(
            DoubleConv(width << (i + 1), width << i) for i in reversed(range(3))
        )
        self.exit = nn.Conv2d(width, classes, 1)
        self.dequant = DeQuantStub()

    def forward(self, x: Tensor) -> Tensor:
        """``[N, 3, H, W]`` to ``[N, classes, H, W]``; H and W are multiples of 8."""
        x = self.enter(self.quant(x))
        skips = []
        for down in self.down:
            skips.append(x)
            x = down(self.pool(x))
        for up, cat, merge in zip(self.up, self.cats, self.merge, strict=True):
            x = merge(cat.cat([up(x), skips.pop()], 1))
        return self.dequant(self.exit(x))

    def groups(self) -> Groups:
        """What `fuse_modules` takes."""
        names = ["enter", *(f"{part}.{i}" for part in ("down", "merge") for i in range(3))]
        return [[f"{name}.{i + j}" for j in range(3)] for name in names for i in (0, 3)]


#: name -> (float model for inference, the size of its images).
INFERENCE = {
    "resnet18": (ResNet18, 224),
    "mobilenet_v2": (MobileNetV2, 224),
    "unet": (UNet, 128),
}

#: name -> (float model for training on small images, the size of its images).
TRAINING = {
    "resnet18": (partial(ResNet18, small_images=True), 64),
    "mobilenet_v2": (partial(MobileNetV2, small_images=True), 32),
    "unet": (UNet, 64),
}
