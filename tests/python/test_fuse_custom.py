"""Fusers of the user's: entries beside the table, and functions in place of it."""

from __future__ import annotations

import pytest
import torch
from fuse_models import is_same, randomize, snapshot
from torch import nn

from horizon_plugin.nn import intrinsic
from horizon_plugin.quantization import FusionError, fuse_known_modules, fuse_modules


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn, self.act = nn.Conv2d(3, 4, 3), randomize(nn.BatchNorm2d(4)), nn.ReLU()


NAMES = ["conv", "bn", "act"]


def conv_bn_relu(channels: int = 3) -> list[nn.Module]:
    return [nn.Conv2d(channels, 4, 1), randomize(nn.BatchNorm2d(4)), nn.ReLU()]


def test_additional_fuser_methods_add_entries_for_exact_classes():
    class MyConv(nn.Conv2d):
        pass

    calls = []

    def fuser(conv, tanh):
        calls.append((type(conv), type(tanh)))
        return nn.Sequential(conv, tanh)

    config = {"additional_fuser_method_mapping": {(MyConv, nn.Tanh): fuser}}
    model = nn.Sequential(MyConv(3, 4, 1), nn.Tanh(), *conv_bn_relu(4))
    fired = []
    model[0].register_forward_pre_hook(lambda m, i: fired.append("pre"))
    fused = fuse_modules(model, [[0, 1], [2, 3, 4]], fuse_custom_config_dict=config)
    assert calls == [(MyConv, nn.Tanh)]
    assert type(fused[0]) is nn.Sequential and type(fused[1]) is nn.Identity
    assert type(fused[2]) is intrinsic.ConvBNReLU2d
    fired.clear()
    x = torch.randn(2, 3, 4, 4)
    assert torch.equal(fused(x), model(x))
    with pytest.warns(UserWarning, match="fused already"):
        fuse_modules(fused, [0, 1], fuse_custom_config_dict=config)
    with pytest.raises(TypeError, match="'0' is a MyConv, a subclass of Conv2d"):
        fuse_modules(model, [0, 1])


def test_additional_fuser_methods_come_before_the_table_and_may_take_is_qat():
    seen = []

    def fuser(is_qat, conv, relu):
        seen.append(is_qat)
        return nn.Sequential(conv, relu)

    config = {"additional_fuser_method_mapping": {(nn.Conv2d, nn.ReLU): fuser}}
    for training in (True, False):
        model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU()).train(training)
        assert type(fuse_modules(model, [0, 1], fuse_custom_config_dict=config)[0]) is nn.Sequential
    assert seen == [True, False]


def test_a_fuser_method_that_returns_no_module_changes_nothing():
    config = {"additional_fuser_method_mapping": {(nn.Conv2d, nn.Tanh): lambda c, t: 3}}
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Tanh())
    with pytest.raises(TypeError, match="must return a module, got int"):
        fuse_modules(model, [0, 1], inplace=True, fuse_custom_config_dict=config)
    assert type(model[1]) is nn.Tanh


def test_a_fuser_func_can_wrap_fuse_known_modules_and_sees_mode_and_mapping():
    seen = []

    def fuser_func(modules, mapping):
        seen.append(([type(m) for m in modules], mapping))
        return fuse_known_modules(modules, mapping)

    model = Encoder()
    fused = fuse_modules(model, NAMES, fuser_func=fuser_func, mode="fuse_bn")
    assert seen == [([nn.Conv2d, nn.BatchNorm2d, nn.ReLU], {})]
    assert type(fused.conv) is intrinsic.ConvReLU2d and fused.conv.bn_folded
    assert fused.conv.fused_name == "conv"
    with pytest.warns(UserWarning, match=r"\['conv', 'bn', 'act'\] is fused already"):
        fuse_modules(fused, NAMES, fuser_func=fuser_func)
    with pytest.raises(FusionError, match=r"part of \['conv', 'bn', 'act'\]"):
        fuse_modules(fused, ["conv", "bn"])


@pytest.mark.parametrize(
    ("result", "kind", "text"),
    [
        (None, TypeError, "must return a list of modules, got None"),
        ([1, 2, 3], TypeError, "must return a list of modules"),
        ([nn.Identity()], FusionError, r"must return 3 modules for \['conv', 'bn', 'act'\], got 1"),
    ],
)
def test_a_fuser_func_must_return_as_many_modules(result, kind, text):
    model = Encoder()
    with pytest.raises(kind, match=text):
        fuse_modules(model, NAMES, inplace=True, fuser_func=lambda modules, mapping: result)
    assert type(model.conv) is nn.Conv2d


def test_fuse_known_modules_returns_replacements_and_leaves_its_list_alone():
    modules = conv_bn_relu()
    kept = list(modules)
    result = fuse_known_modules(modules)
    assert modules == kept
    assert [type(m) for m in result] == [intrinsic.ConvBNReLU2d, nn.Identity, nn.Identity]
    assert result[0].weight is modules[0].weight
    with pytest.warns(UserWarning, match="fused already"):
        assert fuse_known_modules(result) == result
    with pytest.raises(NotImplementedError, match="a sequence that cannot be fused"):
        fuse_known_modules(modules[::-1])
    with pytest.raises(TypeError, match="'mod_list' must be a list of modules, got"):
        fuse_known_modules([1])
    with pytest.raises(FusionError, match="are the same"):
        fuse_known_modules([modules[0], modules[0]])


FUSERS = {
    "raises": lambda modules, mapping: 1 / 0,
    "returns the members": lambda modules, mapping: modules,
    "known": fuse_known_modules,
}


@pytest.mark.parametrize("inplace", [True, False])
def test_a_fuser_func_that_raises_at_its_second_group_changes_nothing(inplace):
    calls = []

    def fuser_func(modules, mapping):
        calls.append(modules)
        return FUSERS["known" if len(calls) < 2 else "raises"](modules, mapping)

    model = nn.Sequential(*conv_bn_relu(), *conv_bn_relu(4))
    before = snapshot(model)
    with pytest.raises(ZeroDivisionError):
        fuse_modules(model, [[0, 1, 2], [3, 4, 5]], inplace=inplace, fuser_func=fuser_func)
    assert is_same(before, snapshot(model))


def test_a_fuser_func_may_leave_the_members_as_they_are():
    model = nn.Sequential(*conv_bn_relu())
    before = snapshot(model)
    fuse_modules(model, [0, 1, 2], inplace=True, fuser_func=FUSERS["returns the members"])
    assert is_same(before, snapshot(model))


BASES = {
    "conv": (lambda: nn.Conv2d(2, 4, 1), lambda: nn.BatchNorm2d(4), (2, 2, 3, 3)),
    "transpose": (lambda: nn.ConvTranspose2d(2, 4, 1), lambda: nn.BatchNorm2d(4), (2, 2, 3, 3)),
    "linear": (lambda: nn.Linear(2, 4), lambda: nn.BatchNorm1d(4), (5, 2)),
}


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("inplace", [True, False])
def test_an_added_entry_serves_every_base_in_every_mode(base, training, inplace):
    make, norm, shape = BASES[base]
    model = nn.Sequential(make(), randomize(norm()), nn.SiLU()).train(training)
    config = {
        "additional_fuser_method_mapping": {
            (type(model[0]), type(model[1]), nn.SiLU): lambda *members: nn.Sequential(*members)
        }
    }
    x = torch.randn(shape)
    expected = model(x)
    members = list(model)
    fused = fuse_modules(model, [0, 1, 2], inplace=inplace, fuse_custom_config_dict=config)
    assert [type(m) for m in fused] == [nn.Sequential, nn.Identity, nn.Identity]
    assert (fused[0][0] is members[0]) is inplace
    assert torch.equal(fused(x), expected)
    if not inplace:
        assert list(model) == members
