"""Modules that stand in several places: an activation shares nothing, a convolution does."""

from __future__ import annotations

import pytest
import torch
from networks import randomize
from torch import Tensor, nn

from horizon_plugin.quantization import FloatFunctional, FusionError, fuse_modules


class TwoPlaces(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        relu = nn.ReLU()
        self.a = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), relu)
        self.b = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), relu)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x))


X = torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    "groups", [[["a.0", "a.1", "a.2"]], [["a.0", "a.1", "a.2"], ["b.0", "b.1", "b.2"]]], ids=len
)
@pytest.mark.parametrize("inplace", [False, True])
def test_a_shared_relu_is_fused_only_where_it_is_named(groups, training, inplace):
    net = randomize(TwoPlaces()).train(training)
    expected = net(X)
    if training:
        net = randomize(TwoPlaces()).train()
        torch.manual_seed(1)
        expected = net(X)
    fused = fuse_modules(net, groups, inplace=inplace)
    torch.testing.assert_close(fused(X), expected, rtol=1e-5, atol=1e-5)
    assert type(fused.b[2]) is (nn.ReLU if len(groups) == 1 else nn.Identity)


def test_a_relu_shared_by_residual_blocks_stays_in_those_that_are_not_named():
    class Block(nn.Module):
        def __init__(self, relu: nn.Module) -> None:
            super().__init__()
            self.conv, self.add, self.relu = nn.Conv2d(3, 3, 1), FloatFunctional(), relu

        def forward(self, x: Tensor) -> Tensor:
            return self.relu(self.add.add(self.conv(x), x))

    shared = nn.ReLU()
    net = nn.Sequential(Block(shared), Block(shared))
    expected = net(X)
    fused = fuse_modules(net, ["0.conv", "0.add", "0.relu"])
    assert type(fused[1].relu) is nn.ReLU
    torch.testing.assert_close(fused(X), expected)


@pytest.mark.parametrize("names", [["a.0", "a.1"], ["a.0", "a.1", "a.2"]])
def test_a_convolution_that_also_stands_alone_is_refused_by_its_other_name(names):
    net = TwoPlaces()
    net.other = nn.ModuleList([net.a[0]])
    before = net(X)
    with pytest.raises(FusionError, match=r"'a.0' is also 'other.0', one module in two places"):
        fuse_modules(net, names, inplace=True)
    assert type(net.a[0]) is nn.Conv2d
    assert net(X).shape == before.shape


def test_a_group_that_stands_whole_in_two_places_is_fused_in_both():
    net = TwoPlaces().eval()
    net.again = nn.Sequential(*net.a)
    fused = fuse_modules(net, ["a.0", "a.1", "a.2"])
    assert fused.again[0] is fused.a[0]
    assert [type(m) for m in list(fused.again)[1:]] == [nn.Identity, nn.Identity]
    torch.testing.assert_close(fused.again(X), net.again(X), rtol=1e-5, atol=1e-6)
