"""Random small networks: finding groups never changes what a network computes."""

from __future__ import annotations

import copy
import random

import pytest
import torch
import torch.nn.functional as F
from networks import randomize
from torch import Tensor, nn

from horizon_plugin.quantization import (
    FloatFunctional,
    FusionError,
    check_unfused_operations,
    fuse,
    fuse_fx,
    fuse_modules,
)

X = torch.randn(2, 4, 5, 5, generator=torch.Generator().manual_seed(0))


class RandomNet(nn.Module):
    """Steps drawn at random: which module, on which of the values so far; modules are shared."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = random.Random(seed)
        in_place = draw.random() < 0.4
        self.convs = nn.ModuleList(nn.Conv2d(4, 4, 1) for _ in range(draw.randint(2, 5)))
        self.bns = nn.ModuleList(nn.BatchNorm2d(4) for _ in range(draw.randint(2, 5)))
        self.acts = nn.ModuleList(
            draw.choice((nn.ReLU, nn.ReLU6))(inplace=in_place) for _ in range(draw.randint(1, 4))
        )
        self.adds = nn.ModuleList(FloatFunctional() for _ in range(draw.randint(1, 4)))
        used = {"convs": 0, "bns": 0, "acts": 0, "adds": 0}
        singles = [*used, "+", "+=", "relu", "relu6", "shape"]
        chains = (["convs", "bns", "acts"], ["convs", "bns", "adds", "acts"], ["convs", "adds"])
        kinds: list[str] = []
        while len(kinds) < 8:
            kinds += draw.choice(chains) if draw.random() < 0.5 else [draw.choice(singles)]
        self.steps: list[tuple[str, int, int, int]] = []
        for count, kind in enumerate(kinds):
            number = 0
            if kind in used:
                # Mostly the next one, so that groups happen; at times one that was used before.
                size = len(getattr(self, kind))
                number = used[kind] % size if draw.random() < 0.9 else draw.randrange(size)
                used[kind] += 1
            near = 0 if draw.random() < 0.9 else draw.randint(0, count)
            self.steps.append((kind, number, near, draw.randint(0, count)))
        self.returned = draw.random() < 0.2
        randomize(self)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        values = [x + 0]
        for kind, number, near, far in self.steps:
            y, z = values[-1 - near % len(values)], values[-1 - far % len(values)]
            if kind == "adds":
                y = self.adds[number].add(y, z) if far % 2 else self.adds[number].add(z, y)
            elif kind == "+":
                y = y + z
            elif kind == "+=":
                y += z
            elif kind == "relu":
                y = F.relu(y)
            elif kind == "relu6":
                y = F.relu6(y)
            elif kind == "shape":
                y = y.reshape(y.shape)
            else:
                y = getattr(self, kind)[number](y)
            values.append(y)
        return tuple(values) if self.returned else (values[-1], values[-2])


def outputs(net: nn.Module) -> tuple[Tensor, ...]:
    with torch.no_grad():
        return net(X.clone())


def assert_close(got: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    for y, value in zip(got, expected, strict=True):
        error = (y - value).norm() / value.norm().clamp_min(1e-6)
        assert error < 1e-4


@pytest.mark.parametrize("first", range(0, 30, 15))
def test_fuse_never_changes_the_output_of_a_random_network(first):
    found = 0
    for seed in range(first, first + 15):
        net = RandomNet(seed).train(seed % 2 == 0)
        expected = outputs(copy.deepcopy(net))
        statistics = copy.deepcopy(net.state_dict())
        groups = check_unfused_operations(net, (X,)).groups
        fused = fuse(net, (X,))
        found += len(groups)
        assert all(torch.equal(a, statistics[k]) for k, a in net.state_dict().items())
        assert_close(outputs(fused), expected)
    assert found > 5


@pytest.mark.parametrize("first", range(0, 30, 15))
def test_a_traced_random_network_computes_the_same(first):
    for seed in range(first, first + 15):
        net = RandomNet(seed).train(seed % 2 == 0)
        expected = outputs(copy.deepcopy(net))
        assert_close(outputs(fuse_fx(net)), expected)
        assert_close(outputs(fuse_fx(net, (X,))), expected)


@pytest.mark.parametrize("first", range(0, 30, 15))
def test_random_names_are_fused_without_a_change_or_refused(first):
    fused_count = refused = 0
    for seed in range(first, first + 15):
        draw = random.Random(seed)
        net = RandomNet(seed).train(seed % 2 == 0)
        names = [f"convs.{draw.randrange(len(net.convs))}"]
        if draw.random() < 0.8:
            names.append(f"bns.{draw.randrange(len(net.bns))}")
        if draw.random() < 0.4:
            names.append(f"adds.{draw.randrange(len(net.adds))}")
        if draw.random() < 0.4 or len(names) == 1:
            names.append(f"acts.{draw.randrange(len(net.acts))}")
        expected = outputs(copy.deepcopy(net))
        try:
            with torch.no_grad():
                fused = fuse_modules(net, names, example_inputs=(X,))
        except FusionError:
            refused += 1
            assert_close(outputs(copy.deepcopy(net)), expected)
            continue
        except UserWarning:  # never called
            continue
        fused_count += 1
        assert_close(outputs(fused), expected)
    assert refused > 5
