"""The demo's network: what the digit is, and the digit without its noise."""

from __future__ import annotations

from torch import Tensor, nn

from horizon_plugin.quantization import DeQuantStub, FloatFunctional, QuantStub, fuse_modules


class ResidualBlock(nn.Module):
    """conv-bn-relu, conv-bn-add-act. The skip is the block's input."""

    def __init__(self, channels: int, act: nn.Module) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.add = FloatFunctional()
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        """``act(bn2(conv2(relu(bn1(conv1(x))))) + x)``."""
        y = self.relu1(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return self.act(self.add.add(y, x))


class DigitsNet(nn.Module):
    """``[N, 1, 8, 8]`` noisy digits to ``[N, 10]`` logits and ``[N, 1, 8, 8]`` clean digits."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.quant = QuantStub()
        self.stem = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        self.block1 = ResidualBlock(width, nn.ReLU())
        self.down = nn.Sequential(
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
        )
        self.block2 = ResidualBlock(2 * width, nn.ReLU6())
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classify = nn.Linear(2 * width, 10)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2, bias=False)
        self.up_bn = nn.BatchNorm2d(width)
        self.up_act = nn.ReLU6()
        self.clean = nn.Conv2d(width, 1, 3, padding=1)
        self.dequant_digit = DeQuantStub()
        self.dequant_image = DeQuantStub()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and the cleaned image."""
        x = self.quant(x)
        x = self.down(self.block1(self.stem(x)))
        x = self.block2(x)
        digit = self.classify(self.pool(x).flatten(1))
        image = self.clean(self.up_act(self.up_bn(self.up(x))))
        return self.dequant_digit(digit), self.dequant_image(image)


def fuse(model: DigitsNet, fuse_add: bool = True) -> DigitsNet:
    """Fuse every group in place: by Sequential indices, and by names.

    With ``fuse_add=False`` the residual adds stay on their own, as tools without add fusion leave
    them: one more quantization between convolution and add.
    """
    fuse_modules(model.stem, [0, 1, 2], inplace=True)
    fuse_modules(model.down, ["0", "1", "2"], inplace=True)
    groups = [["up", "up_bn", "up_act"]]
    for block in ("block1", "block2"):
        groups.append([f"{block}.conv1", f"{block}.bn1", f"{block}.relu1"])
        last = [f"{block}.conv2", f"{block}.bn2"]
        groups.append([*last, f"{block}.add", f"{block}.act"] if fuse_add else last)
    fuse_modules(model, groups, inplace=True)
    return model
