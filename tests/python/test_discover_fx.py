"""`fuse_fx`: groups that need the code rewritten, and traced models through every stage."""

from __future__ import annotations

import copy
import operator
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from discover_models import (
    UNSAFE,
    FunctionalRelu,
    Head,
    InputChanged,
    Parts,
    RawAdd,
    RawResNet,
    RawResultInSkip,
    SharedRelu,
    X,
)
from networks import ALL_NETWORKS, randomize
from stages import silent_jit
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves

from horizon_plugin.quantization import (
    DeQuantStub,
    FusionError,
    QuantStub,
    convert,
    fuse_fx,
    fuse_modules,
    fusion_report,
    get_default_qat_qconfig,
    prepare_qat,
    report,
)

MODES = {"train": True, "eval": False}
EXAMPLES = {"alone": False, "with example inputs": True}


def groups_of(model: nn.Module) -> list[list[str]]:
    return sorted(list(group.names) for group in fusion_report(model).fused)


def assert_same(model: nn.Module, fused: nn.Module, x: Tensor = X) -> None:
    with torch.no_grad():
        for y, expected in zip(tree_leaves(fused(x)), tree_leaves(model(x)), strict=True):
            torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)


class Subtracted(Parts):
    def forward(self, x: Tensor) -> Tensor:
        return torch.add(self.conv(x), x, alpha=-1)


class Scalar(Parts):
    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x) + 3.0


class Sizes(Parts):
    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x).reshape(x.shape[0] + x.size(1) + 1, -1)  # 6 rows


class InPlaceSeen(Parts):
    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.conv(x))
        z = y
        y += x
        return y + z


def raw_add(name: str, add: Any) -> type:
    class RawSum(Parts):
        def forward(self, x: Tensor) -> Tensor:
            return self.relu6(add(self.bn(self.conv(x)), x))

    RawSum.__name__ = name
    return RawSum


def raw_relu(name: str, act: Any) -> type:
    class RawRelu(Parts):
        def forward(self, x: Tensor) -> Tensor:
            return act(self.add.add(self.bn(self.conv(x)), x))

    RawRelu.__name__ = name
    return RawRelu


SUM = [["conv", "bn", "add_1", "relu6"]]
RELU = [["conv", "bn", "add", "relu_1"]]
RELU6 = [["conv", "bn", "add", "relu6_1"]]

# What the rewriting makes a group of.
REWRITTEN = [
    (raw_add("plus", lambda a, b: a + b), SUM),
    (raw_add("swapped", lambda a, b: b + a), SUM),
    (raw_add("torch_add", torch.add), SUM),
    (raw_add("method", lambda a, b: a.add(b)), SUM),
    (raw_add("iadd", operator.iadd), SUM),
    (raw_add("add_", lambda a, b: a.add_(b)), SUM),
    (raw_relu("F.relu", F.relu), RELU),
    (raw_relu("torch.relu", torch.relu), RELU),
    (raw_relu("relu method", lambda y: y.relu()), RELU),
    (raw_relu("relu_", lambda y: y.relu_()), RELU),
    (raw_relu("inplace", lambda y: F.relu(y, inplace=True)), RELU),
    (raw_relu("F.relu6", F.relu6), RELU6),
    (raw_relu("hardtanh", lambda y: F.hardtanh(y, 0.0, 6.0)), RELU6),
    (raw_relu("hardtanh keywords", lambda y: F.hardtanh(y, min_val=0, max_val=6)), RELU6),
    (SharedRelu, [["conv", "bn", "relu"], ["conv2", "bn2", "relu_1"]]),
    (FunctionalRelu, [["conv", "bn", "relu_1"]]),
    (RawAdd, [["conv", "add_1", "relu"]]),
]
# What it leaves as it is.
KEPT = [
    (Subtracted, []),
    (Scalar, []),
    (Sizes, []),
    (InPlaceSeen, [["conv", "relu"]]),
    (raw_relu("other hardtanh", lambda y: F.hardtanh(y, 0.0, 5.0)), [["conv", "bn", "add"]]),
    (raw_relu("clamp", lambda y: y.clamp(0, 6)), [["conv", "bn", "add"]]),
    (RawResultInSkip, []),
    (InputChanged, [["conv", "bn"]]),
]


@pytest.mark.parametrize(
    ("cls", "groups"), REWRITTEN + KEPT, ids=[row[0].__name__ for row in REWRITTEN + KEPT]
)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("examples", EXAMPLES)
def test_code_is_rewritten_where_that_makes_a_group(cls, groups, mode, examples):
    model = cls().train(MODES[mode])
    plain = copy.deepcopy(model)
    fused = fuse_fx(model, (X,) if EXAMPLES[examples] else None)
    assert isinstance(fused, fx.GraphModule)
    assert groups_of(fused) == groups
    assert_same(plain, fused, X.clone())


@pytest.mark.parametrize("cls", [row[0] for row in UNSAFE if row[0].__name__ != "ResultViewed"])
@pytest.mark.parametrize("mode", MODES)
def test_a_trace_never_changes_what_an_awkward_model_computes(cls, mode):
    model = cls().train(MODES[mode])
    plain = copy.deepcopy(model)
    assert_same(plain, fuse_fx(model))
    assert_same(copy.deepcopy(plain), fuse_fx(plain, (X,)))


@pytest.mark.parametrize("name", ALL_NETWORKS)
@pytest.mark.parametrize("examples", EXAMPLES)
def test_the_groups_found_in_a_traced_network_are_those_decided_by_hand(name, examples):
    net = randomize(ALL_NETWORKS[name]()).eval()
    x = torch.randn(net.input_shape)
    fused = fuse_fx(net, (x,) if EXAMPLES[examples] else None)
    assert groups_of(fused) == sorted(net.groups())
    assert_same(net, fused, x)


def test_a_head_shared_by_levels_keeps_one_activation():
    model = randomize(Head()).eval()
    levels = [X, X[..., :5, :5], X[..., :4, :4]]

    class Levels(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = model

        def forward(self, a: Tensor, b: Tensor, c: Tensor) -> list[Tensor]:
            return self.head([a, b, c])

    net = Levels()
    fused = fuse_fx(net, tuple(levels))
    assert groups_of(fused) == [["head.conv", "head.bn", "head.relu"]]
    for y, expected in zip(fused(*levels), net(*levels), strict=True):
        torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)


def test_an_identity_between_a_convolution_and_its_add_disappears():
    class Dropped(Parts):
        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            return self.drop(self.bn(self.drop(self.conv(x)))) + x

    model = Dropped().eval()
    fused = fuse_fx(model)
    assert groups_of(fused) == [["conv", "bn", "add_1"]]
    assert not hasattr(fused, "drop") and hasattr(model, "drop")
    assert_same(model, fused)


# --- Every stage --------------------------------------------------------------------------------


COPIES: dict[str, Any] = {
    "itself": lambda model: model,
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
}


@pytest.mark.parametrize("how", COPIES)
def test_a_plain_resnet_is_quantized_exactly_at_every_stage(how):
    model = RawResNet(QuantStub(), DeQuantStub()).train()
    x = torch.randn(2, 3, 32, 32)
    fused = COPIES[how](fuse_fx(model, (x,)))
    groups = groups_of(fused)
    assert len(groups) == 1 + 8 * 2 + 3
    assert sum("add" in names[2] for names in groups if len(names) == 4) == 8
    assert torch.equal(fused(x), copy.deepcopy(model)(x))
    fused.qconfig = get_default_qat_qconfig()
    prepared = COPIES[how](prepare_qat(COPIES[how](fused)))
    assert report(prepared).float_layers == []
    prepared(x).square().mean().backward()
    prepared.eval()
    expected = prepared(x)
    assert not torch.equal(expected, fused.eval()(x))
    converted = COPIES[how](convert(prepared))
    assert torch.equal(converted(x), expected)
    assert groups_of(converted) == groups
    assert torch.equal(silent_jit(torch.jit.trace, converted, x)(x), expected)


def test_a_traced_model_keeps_settings_modes_and_hooks():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.ReLU())
            self.block.qconfig = get_default_qat_qconfig()

        def forward(self, x: Tensor) -> Tensor:
            return self.block(x)

    model, calls = Net().eval(), []
    model.register_forward_hook(lambda m, a, y: calls.append("root"))
    model.block[2].register_forward_hook(lambda m, a, y: calls.append("relu"))
    for how in COPIES:
        if how != "pickle":
            fused = COPIES[how](fuse_fx(model))
            calls.clear()
            fused(X)
            assert calls == ["relu", "root"]
            assert fused.block.qconfig is not None
            assert not any(module.training for module in fused.modules())


def test_inplace_takes_the_models_own_modules_and_otherwise_copies():
    model = RawAdd().train()
    ids = {id(p) for p in model.parameters()}
    assert {id(p) for p in fuse_fx(model, inplace=True).parameters()} <= ids
    assert not {id(p) for p in fuse_fx(model).parameters()} & ids
    assert type(model.conv) is nn.Conv2d


def test_what_an_earlier_call_fused_is_a_leaf():
    class Two(Parts):
        def forward(self, x: Tensor) -> Tensor:
            return self.bn2(self.conv2(self.relu(self.add.add(self.bn(self.conv(x)), x))))

    model = fuse_modules(Two().eval(), ["conv", "bn", "add", "relu"])
    fused = fuse_fx(model, (X,))
    assert groups_of(fused) == [["conv", "bn", "add", "relu"], ["conv2", "bn2"]]
    assert_same(model, fused)


# --- Refusals -----------------------------------------------------------------------------------


class Branch(Parts):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return self.conv(x)
        return self.bn(x)


class Loop(Parts):
    def forward(self, x: Tensor) -> Tensor:
        for row in x:
            x = x + row
        return x


@pytest.mark.parametrize(("cls", "line"), [(Branch, r"if x.sum\(\) > 0:"), (Loop, "for row in x:")])
def test_an_untraceable_model_is_refused_with_its_line(cls, line):
    text = rf"got TraceError at .*test_discover_fx.py:\d+ \({line}\).*Use fuse\(model, example_inp"
    with pytest.raises(FusionError, match=text):
        fuse_fx(cls())


def test_a_trace_that_computes_something_else_is_refused():
    class Baked(Parts):
        def forward(self, x: Tensor, flag: Any = None) -> Tensor:
            return self.bn(self.conv(x)) if flag is None else x

    with pytest.raises(FusionError, match=r"fuse_fx: the model must compute .* its trace does not"):
        fuse_fx(Baked(), (X,))


@pytest.mark.parametrize("training", [True, False])
def test_a_functional_dropout_is_warned_about(training):
    class Dropped(Parts):
        def forward(self, x: Tensor) -> Tensor:
            return F.dropout(self.conv(x), 0.5, self.training)

    with pytest.warns(UserWarning, match=r"F.dropout keeps the mode of the trace \((train|eval)\)"):
        fuse_fx(Dropped().train(training))


def test_arguments_are_checked():
    with pytest.raises(TypeError, match="fuse_fx: 'model' must be a module"):
        fuse_fx(3)
    with pytest.raises(TypeError, match="fuse_fx: 'example_inputs' must be a tuple"):
        fuse_fx(RawAdd(), X)
    with pytest.raises(ValueError, match="fuse_fx: 'mode' must be one of"):
        fuse_fx(RawAdd(), mode="fold")
