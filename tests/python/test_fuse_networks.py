"""Whole networks compute the same before and after their groups are fused."""

from __future__ import annotations

import copy

import pytest
import torch
from networks import ALL_NETWORKS, randomize
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from horizon_plugin.quantization import (
    convert,
    fuse_modules,
    get_default_qat_qconfig,
    prepare_qat,
)

MODES = {"train": True, "eval": False}


def results(net: nn.Module, x: Tensor) -> list[Tensor]:
    torch.manual_seed(3)  # dropout
    return tree_leaves(net(x))


def statistics(net: nn.Module) -> list[Tensor]:
    norms = [m for m in net.modules() if isinstance(m, nn.BatchNorm2d)]
    # A fused add holds its batch norm in another place, so that the order differs.
    return sorted((m.running_mean for m in norms), key=lambda t: (t.numel(), t.tolist()))


@pytest.mark.parametrize("name", ALL_NETWORKS)
def test_the_groups_of_a_network_are_as_many_as_counted_and_share_no_member(name):
    net = ALL_NETWORKS[name]()
    groups = net.groups()
    assert len(groups) == net.group_count
    members = [member for group in groups for member in group]
    assert len(members) == len(set(members))
    for member in members:
        net.get_submodule(member)


@pytest.mark.parametrize("name", ALL_NETWORKS)
@pytest.mark.parametrize("mode", MODES)
def test_a_network_computes_the_same_before_and_after_fusion(name, mode):
    net = randomize(ALL_NETWORKS[name]()).train(MODES[mode])
    x = torch.randn(net.input_shape)
    plain = copy.deepcopy(net)
    assert fuse_modules(net, net.groups(), inplace=True) is net
    for _ in range(2):
        got, expected = results(net, x), results(plain, x)
        assert len(got) == len(expected)
        for y, value in zip(got, expected, strict=True):
            assert value.abs().max() > 1e-3
            if MODES[mode]:
                assert torch.equal(y, value)  # a live group runs the very ops of the chain
            else:
                error = (y - value).abs().max() / value.abs().max()
                assert error < 1e-5
    if MODES[mode]:
        for got_mean, mean in zip(statistics(net), statistics(plain), strict=True):
            assert torch.equal(got_mean, mean)
    else:
        grouped = [m for group in plain.groups() for m in group]
        folded = [m for m in grouped if isinstance(plain.get_submodule(m), nn.BatchNorm2d)]
        left = len(statistics(plain)) - len(folded)
        assert len(statistics(net)) == left == (name == "densenet") * 6


@pytest.mark.filterwarnings("ignore:convert. no range was ever observed in blocks.4.skip_add")
@pytest.mark.parametrize("name", ALL_NETWORKS)
def test_a_fused_network_converts_bit_for_bit(name):
    net = randomize(ALL_NETWORKS[name]()).train()
    fuse_modules(net, net.groups(), inplace=True)
    net.qconfig = get_default_qat_qconfig()
    model = prepare_qat(net, inplace=True)
    x = torch.randn(net.input_shape)
    model(x)
    with torch.no_grad():
        expected = tree_leaves(model.eval()(x))
        for y, value in zip(tree_leaves(convert(model)(x)), expected, strict=True):
            assert torch.equal(y, value)
