"""A run on example inputs leaves no trace in what the modules of a model hold, however nested."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from discover_models import Chain, X
from torch import Tensor, nn

from horizon_plugin.quantization import FusionError, check_unfused_operations, fuse, fuse_fx


@dataclass
class Meter:
    count: int = 0
    seen: list[Any] = field(default_factory=list)
    mean: Tensor = field(default_factory=lambda: torch.zeros(2))


class Keeper(Chain):
    """Keeps state in everything that a module may hold, and writes into parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.nested: dict[str, Any] = {"a": {"b": [0]}, "tensor": torch.zeros(2)}
        self.bank = [torch.zeros(2), (torch.zeros(3), [torch.zeros(1)])]
        self.queue, self.names = deque([1, 2], maxlen=2), {"x"}
        self.counts: defaultdict[str, int] = defaultdict(int)
        self.meter, self.space = Meter(), SimpleNamespace(n=0)
        self.teacher = [nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 3, 1))]  # not registered
        self.momentum = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        self.nested["a"]["b"].append(1)
        self.nested["tensor"] += 1
        self.bank[0].add_(1)
        self.bank[1][0].add_(1)
        self.bank[1][1][0] = torch.ones(1)
        self.queue.append(3)
        self.names.add("y")
        self.counts["z"] += 1
        self.meter.count += 1
        self.meter.seen.append(x)
        self.meter.mean.add_(1)
        self.space.n += 1
        self.teacher[0](x)
        with torch.no_grad():
            self.momentum.mul_(0.5)
            self.teacher[0][1].weight.data = self.teacher[0][1].weight.data * 0.9
            self.conv2.weight.data.clamp_(-0.01, 0.01)
        self.conv2.weight.requires_grad_(False)
        return super().forward(x)


def values(value: Any) -> Any:
    """What can be compared: tensors by identity, version, memory and values."""
    if isinstance(value, Tensor):
        numbers = value.detach().tolist()
        return id(value), value._version, value.data_ptr(), value.requires_grad, numbers
    if isinstance(value, dict):
        return [(key, values(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple, deque)):
        return id(value), [values(item) for item in value]
    if isinstance(value, nn.Module):
        return values({**value._parameters, **value._buffers, **value._modules})
    if isinstance(value, (Meter, SimpleNamespace)):
        return id(value), values(vars(value))
    return sorted(value) if isinstance(value, set) else value


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("call", [check_unfused_operations, fuse])
def test_nested_state_and_parameters_are_as_before(call, training):
    model = Keeper().train(training)
    before = values(vars(model))
    call(model, (X,))
    assert values(vars(model)) == before


def test_after_fusing_in_place_the_state_is_as_before_as_well():
    model = Keeper().eval()
    names = ("nested", "bank", "queue", "names", "counts", "meter", "space", "teacher", "momentum")
    before = values({name: getattr(model, name) for name in names})
    fuse(model, (X,), inplace=True)
    assert isinstance(model.bn, nn.Identity)
    assert values({name: getattr(model, name) for name in names}) == before


def test_state_is_put_back_when_the_model_raises():
    class Raises(Keeper):
        def forward(self, x: Tensor) -> Tensor:
            super().forward(x)
            raise ArithmeticError("no")

    model = Raises()
    before = values(vars(model))
    with pytest.raises(ArithmeticError):
        fuse(model, (X,))
    assert values(vars(model)) == before


def test_a_parameter_that_is_not_a_number_is_no_obstacle():
    model = Chain().eval()
    with torch.no_grad():
        model.conv2.weight.fill_(float("nan"))
    assert isinstance(fuse(model, (X,)).bn, nn.Identity)


@pytest.mark.parametrize("call", [fuse, fuse_fx])
def test_a_refused_model_is_as_before(call):
    class Random(Keeper):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + torch.rand(1, generator=self.generator)

    model = Random()
    model.generator = torch.Generator()
    before = values(vars(model))
    with pytest.raises(FusionError):
        call(model, (X,))
    assert values(vars(model)) == before
