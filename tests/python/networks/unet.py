"""A U-Net with transposed convolutions."""

from __future__ import annotations

from torch import Tensor, nn

from horizon_plugin.quantization import DeQuantStub, FloatFunctional, QuantStub


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

    input_shape = (2, 3, 32, 32)
    group_count = 11  # 2 in each of 5 double convolutions; up2. up1 goes straight into the cat

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
