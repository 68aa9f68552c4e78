"""Groups whose fusion changes what a model computes although its calls look safe."""

from __future__ import annotations

import re
from itertools import count
from typing import Any

import pytest
import torch
from discover_models import Chain, Parts, X
from networks import randomize
from torch import Tensor, nn

from horizon_plugin.quantization import (
    FusionError,
    check_unfused_operations,
    fuse,
    fuse_fx,
    fuse_modules,
    fusion_report,
)

MODES = {"train": True, "eval": False}


class Block(Parts):
    """Two groups, and a read of something that the first one takes away."""

    def __init__(self, read: str) -> None:
        super().__init__()
        self.read = read

    def forward(self, x: Tensor) -> Tensor:
        value: Any = self
        for name in self.read.split("."):
            value = getattr(value, name)
        scale = value.sum() if isinstance(value, Tensor) else value
        y = self.relu(self.bn(self.conv(x)))
        return self.relu6(self.bn2(self.conv2(y))) * scale


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize(
    ("read", "training", "text"),
    [
        ("bn.eps", True, "raises AttributeError: 'Identity' object has no attribute 'eps'"),
        ("bn.weight", False, "raises AttributeError: 'Identity' object has no attribute 'weight'"),
        ("conv.weight", False, "its output differs by"),  # folded: other values
    ],
)
def test_a_group_whose_member_is_read_is_left_alone_with_what_it_changes(
    read, training, text, inplace
):
    model = Block(read).train(training)
    expected = model.eval()(X)
    model.train(training)
    fused = fuse(model, (X,), inplace=inplace)
    report = fusion_report(fused)
    assert [group.names for group in report.fused] == [("conv2", "bn2", "relu6")]
    rows = {row.name: row for row in report.left}
    for name in ("conv", "bn", "relu"):
        assert f"fused, ['conv', 'bn', 'relu'] would change what the model computes: {text}" in (
            rows[name].reason.replace("the fused model raises", "raises")
        )
    torch.testing.assert_close(fused.eval()(X), expected, rtol=1e-5, atol=1e-5)


def test_by_names_the_harmful_groups_are_named():
    model = Block("bn.eps")
    lists = [["conv2", "bn2", "relu6"], ["conv", "bn", "relu"]]
    with pytest.raises(FusionError, match=r"attribute 'eps'.*: leave \['conv', 'bn', 'relu'\] out"):
        fuse_modules(model, lists, inplace=True, example_inputs=(X,))
    assert type(model.conv2) is nn.Conv2d
    fuse_modules(model, lists[:1], inplace=True, example_inputs=(X,))


class Many(nn.Module):
    """Sixteen groups in a row; the model reads the batch norms of some."""

    def __init__(self, read: set[int]) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(3, 3, 1) for _ in range(16))
        self.bns = nn.ModuleList(nn.BatchNorm2d(3) for _ in range(16))
        self.read, self.runs = read, count()
        randomize(self)

    def forward(self, x: Tensor) -> Tensor:
        next(self.runs)
        for i, (conv, bn) in enumerate(zip(self.convs, self.bns, strict=True)):
            x = bn(conv(x)) + (bn.eps if i in self.read else 0.0)
        return x


@pytest.mark.parametrize("read", [set(), {0}, {15}, {3, 4}, {0, 7, 15}, set(range(16))])
def test_every_harmful_group_is_found_and_no_other_left(read):
    model = Many(read).eval()
    fused = fuse(model, (X,), inplace=True)
    groups = {int(group.names[0].split(".")[1]) for group in fusion_report(fused).fused}
    assert groups == set(range(16)) - read
    # The record, all groups, none; for each harmful one two runs at each of log2(16) halvings.
    assert next(model.runs) <= 3 + 8 * len(read)


@pytest.mark.parametrize("call", [fuse, fuse_fx])
def test_a_model_that_is_never_the_same_is_refused_as_that(call):
    calls = count()

    class Counts(Chain):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + next(calls)

    model = Counts()
    with pytest.raises(FusionError, match=r"must compute the same .*it gives another output at"):
        call(model, (X,), inplace=call is fuse)
    assert type(model.conv) is nn.Conv2d


# --- What an earlier call fused too short -------------------------------------------------------


class AddChain(Parts):
    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.add.add(self.bn(self.conv(x)), x))


class AddThenFunction(Parts):
    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.bn(self.conv(x)))


class AddThenShared(Parts):
    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.conv2(self.relu(self.bn(self.conv(x)))))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("cls", "names", "row", "text"),
    [
        (AddChain, ["conv", "bn"], "add", r"'bn': its result goes to 'add' .*fused without it"),
        (AddChain, ["conv", "bn", "add"], "relu", r"fuse \['conv', 'bn', 'add'\] and 'relu' in"),
        (Chain, ["conv", "bn"], "relu", r"fuse \['conv', 'bn'\] and 'relu' in one list"),
        (AddThenFunction, ["conv", "bn"], "conv", r"'bn': its result goes to relu .*nn.ReLU"),
        (AddThenShared, ["conv", "bn"], "relu", r"'relu' is called 2 times.*module of its own"),
    ],
    ids=["add", "relu after add", "relu", "function", "shared"],
)
def test_a_group_that_could_have_been_longer_is_told(cls, names, row, text, mode):
    fused = fuse_modules(cls().train(MODES[mode]), names)
    rows = check_unfused_operations(fused, (X,))
    assert rows.groups == []
    reasons = [r.reason for r in rows if r.name == row]
    assert len(reasons) == 1 and re.search(text, reasons[0]), rows


@pytest.mark.parametrize("names", [["conv", "bn", "add", "relu"]])
def test_of_a_whole_group_nothing_is_told(names):
    assert check_unfused_operations(fuse_modules(AddChain(), names), (X,)) == []


# --- Wrappers inside ----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("call", [fuse, fuse_fx])
def test_groups_inside_a_wrapper_are_left_alone_and_the_others_fused(call, mode):
    class Outer(Chain):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.DataParallel(Chain())

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(super().forward(x))

    fused = call(Outer().train(MODES[mode]), (X,))
    report = fusion_report(fused)
    assert [group.names for group in report.fused] == [("conv", "bn", "relu")]
    reasons = {row.name: row.reason for row in report.left}
    assert "'inner' is wrapped in DataParallel" in reasons["inner.module.conv"]
    assert "fuse before wrapping" in reasons["inner.module.conv"]


# --- Warnings -----------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["fuse", "fuse_fx", "fuse_modules"])
def test_a_warning_names_the_call_and_points_to_its_line(call):
    model = Parts().eval()
    model.conv2.weight = nn.Parameter(torch.zeros(3, 3, 1, 1))
    model = nn.Sequential(model.conv2, model.bn, nn.ReLU(), nn.Conv2d(3, 3, 1)).eval()
    model[3].weight = model[0].weight
    with pytest.warns(UserWarning, match=f"^{call}: folding") as caught:
        if call == "fuse_modules":
            fuse_modules(model, ["0", "1", "2"], example_inputs=(X,))
        else:
            (fuse if call == "fuse" else fuse_fx)(model, (X,))
    assert [warning.filename for warning in caught] == [__file__]
