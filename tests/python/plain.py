"""The smallest whole model, and what tests of the stages ask of it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from horizon_plugin.quantization import (
    DeQuantStub,
    FakeQuantize,
    QuantStub,
    fuse_modules,
    get_default_qat_qconfig,
    prepare_qat,
)


class Plain(nn.Module):
    """quant, conv-bn-relu, pool, linear, dequant."""

    def __init__(self) -> None:
        super().__init__()
        self.quant = QuantStub()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.bn = nn.BatchNorm2d(8)
        self.relu = nn.ReLU()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(8, 4)
        self.dequant = DeQuantStub()

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn(self.conv(self.quant(x))))
        return self.dequant(self.fc(self.pool(x).flatten(1)))


def fused() -> Plain:
    net = Plain().train()
    fuse_modules(net, ["conv", "bn", "relu"], inplace=True)
    net.qconfig = get_default_qat_qconfig()
    return net


def ranges(model: nn.Module) -> dict[str, float]:
    return {
        f"{name}.{key}": getattr(m, key).item()
        for name, m in model.named_modules()
        if isinstance(m, FakeQuantize)
        for key in ("min_val", "max_val", "scale", "observed")
    }


X = torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(1))


def with_qconfig(model: nn.Module, qconfig: object = None) -> nn.Module:
    model.qconfig = qconfig or get_default_qat_qconfig()
    return model


def prepared_in_eval(net: nn.Module, backend: str) -> nn.Module:
    model = prepare_qat(with_qconfig(net.train(), get_default_qat_qconfig(backend=backend)))
    model(X)
    return model.eval()
