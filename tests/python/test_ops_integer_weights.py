"""The weight of a converted layer: natural in state dicts, packed in memory."""

from __future__ import annotations

import copy

import pytest
import torch
from plain import with_qconfig
from stages import prepared
from torch import nn

from horizon_plugin.quantization import DeQuantStub, QuantStub, convert

X = torch.randn(2, 3, 8, 8)


def converted(channels: int = 4, *, transposed: bool = False) -> nn.Sequential:
    torch.manual_seed(channels)
    kind = nn.ConvTranspose2d if transposed else nn.Conv2d
    layers = (QuantStub(), kind(3, channels, 3, stride=2), DeQuantStub())
    return convert(prepared(with_qconfig(nn.Sequential(*layers)), X))


@pytest.mark.parametrize("transposed", [False, True])
def test_the_state_dict_has_natural_codes_and_memory_packed_ones(transposed: bool) -> None:
    model = converted(transposed=transposed)
    state = model.state_dict()
    assert state["1.weight"].dtype == torch.int8
    assert state["1.weight"].shape == ((3, 4, 3, 3) if transposed else (4, 3, 3, 3))
    assert "1.packed_weight" not in state
    held = dict(model.named_buffers())
    assert "1.weight" not in held
    assert held["1.packed_weight"].dim() == 1
    assert torch.equal(model[1].weight, state["1.weight"])


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("assign", [False, True])
def test_loading_packs(transposed: bool, assign: bool) -> None:
    source, target = (converted(transposed=transposed) for _ in range(2))
    state = {k: v.clone() for k, v in source.state_dict().items()}
    state["1.weight"] = state["1.weight"].neg()
    target.load_state_dict(state, assign=assign)
    assert torch.equal(target[1].weight, state["1.weight"])
    assert not torch.equal(target(X), source(X))
    assert torch.equal(copy.deepcopy(target)(X), target(X))


def test_strict_loading_names_the_weight() -> None:
    model = converted()
    before = model[1].packed_weight.clone()
    state = model.state_dict()
    del state["1.weight"]
    with pytest.raises(RuntimeError, match=r"missing: 1\.weight"):
        model.load_state_dict(state)
    model.load_state_dict(state, strict=False)
    with pytest.raises(RuntimeError, match=r"1\.weight"):
        model.load_state_dict(state | {"1.weight": torch.zeros(4, 3, 1, 1).char()})
    with pytest.raises(RuntimeError, match=r"unexpected: 1\.other"):
        model.load_state_dict(model.state_dict() | {"1.other": torch.zeros(1)})
    assert torch.equal(model[1].packed_weight, before)


def test_a_change_of_dtype_leaves_the_weight() -> None:
    model = converted()
    before = model[1].weight
    assert torch.equal(model.half()[1].weight, before)
