"""A small network with one group of every base that has an image, and a residual add."""

from __future__ import annotations

import torch
from networks import randomize
from torch import Tensor, nn

from horizon_plugin.quantization import (
    DeQuantStub,
    FloatFunctional,
    QuantStub,
    fuse_modules,
    get_default_qat_qconfig,
    prepare_qat,
)

GROUPS = [["conv1", "bn1", "relu1"], ["conv2", "bn2", "add", "relu2"], ["up", "bn3"]]


class Residual(nn.Module):
    """quant, conv-bn-relu6, conv-bn-add-relu, deconv-bn, dequant."""

    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant = QuantStub(), DeQuantStub()
        self.conv1 = nn.Conv2d(3, 4, 3, padding=1)
        self.bn1, self.relu1 = nn.BatchNorm2d(4), nn.ReLU6()
        self.conv2 = nn.Conv2d(4, 4, 1, bias=False)
        self.bn2, self.add, self.relu2 = nn.BatchNorm2d(4), FloatFunctional(), nn.ReLU()
        self.up, self.bn3 = nn.ConvTranspose2d(4, 4, 2, 2, groups=2), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu1(self.bn1(self.conv1(self.quant(x))))
        x = self.relu2(self.add.add(self.bn2(self.conv2(x)), x))
        return self.dequant(self.bn3(self.up(x)))


IMAGE = torch.randn(2, 3, 6, 5, generator=torch.Generator().manual_seed(2))


def fused_residual(net: nn.Module | None = None) -> nn.Module:
    """Fused with live batch norms, and a qconfig."""
    net = fuse_modules(net or randomize(Residual()), GROUPS, inplace=True)
    net.qconfig = get_default_qat_qconfig()
    return net


def prepared_residual(net: nn.Module | None = None) -> nn.Module:
    """Prepared, in train mode, having seen nothing yet."""
    return prepare_qat(fused_residual(net), inplace=True)


def trained_residual(net: nn.Module | None = None) -> nn.Module:
    """Prepared, having seen one batch; in eval mode."""
    model = prepared_residual(net)
    model(IMAGE.to(next(model.parameters()).dtype))
    return model.eval()
