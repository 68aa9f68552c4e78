"""What `fuse_modules` refuses: one message each, and nothing changed."""

from __future__ import annotations

import threading

import pytest
import torch
from fuse_models import is_same, snapshot
from torch import nn
from torch.nn.utils import prune

from horizon_plugin.quantization import FloatFunctional, FusionError, fuse_modules


class PaddedConv(nn.Conv2d):
    def forward(self, x):
        return super().forward(nn.functional.pad(x, (1, 1, 1, 1)))


class NormAct(nn.BatchNorm2d):
    def forward(self, x):
        return super().forward(x).relu()


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.bn = nn.BatchNorm2d(4)
        self.act = nn.ReLU()
        self.downsample = None


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = Encoder()
        self.blocks = nn.ModuleList([nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.ReLU6()])
        self.add = FloatFunctional()
        self.fc, self.norm = nn.Linear(4, 5), nn.BatchNorm1d(5)
        self.padded, self.norm_act = PaddedConv(3, 4, 3), NormAct(4)
        self.conv1d, self.bn1d = nn.Conv1d(1, 1, 3), nn.BatchNorm1d(1)
        self.tanh, self.tight = nn.Hardtanh(), nn.Hardtanh(0, 1)
        self.wide = nn.BatchNorm2d(16)
        self.lazy = nn.LazyConv2d(4, 3)


class Opaque:
    pass


REFUSALS = [
    # names
    (
        ["enc.conv", "enc.relu"],
        FusionError,
        r"'enc\.relu' must name a module, but 'enc' \(Encoder\) has no child 'relu'; its children "
        r"are conv, bn, act\. Functional ops \(F\.relu, \+\) have no name and cannot be fused",
    ),
    (["blocks.0", "blocks.7"], FusionError, r"'blocks' \(ModuleList\) has no child '7'.*0, 1, 2"),
    (["conv", "bn"], FusionError, r"the model \(Net\) has no child 'conv'; its children are enc"),
    (["enc.conv.x", "enc.bn"], FusionError, r"'enc\.conv' \(Conv2d\) has no child 'x', nor any"),
    (["enc.downsample", "enc.bn"], FusionError, "has no child 'downsample'"),
    (["blocks.-3", "blocks.-2"], FusionError, r"negative subscripts are not supported: the last"),
    ([-1, -2], FusionError, r"'-1' must name a module, but negative subscripts are not supported"),
    (["", "enc.bn"], FusionError, r"'' must name a module, but the model \(Net\) has no child ''"),
    (["\ud800", "enc.bn"], FusionError, r"has no child '\\ud800'"),
    (["a\0\nb", "enc.bn"], FusionError, r"has no child 'a\\x00\\x0ab'; its children are enc"),
    (["é" * 10**6, "enc.bn"], FusionError, r"has no child 'é{100}… \(2000000 bytes\)'; its chi"),
    ([10**5000, 1], FusionError, r"'0x[0-9a-f]{198}… \(41\d\d bytes\)' must name a module"),
    ([7, 8], FusionError, "has no child '7'"),
    (["enc.conv"] * 1000, FusionError, r"'enc\.conv', … \(1000 in all\)\] must name different"),
    (["ключ", "enc.bn"], FusionError, "has no child 'ключ'"),
    (["enc..conv", "enc.bn"], FusionError, r"'enc' \(Encoder\) has no child ''"),
    # lists
    ([], FusionError, "each list must name two or more modules, got an empty list"),
    ([[]], FusionError, "got an empty list"),
    (["enc.conv"], FusionError, r"got only \['enc\.conv'\]"),
    (["enc.conv", "enc.bn", "enc.conv"], FusionError, r"'enc\.conv' stands there twice"),
    ("enc.conv", TypeError, "must be a list of names or a list of such lists, got str"),
    (None, TypeError, "must be a list of names or a list of such lists, got NoneType"),
    ({"enc.conv", "enc.bn"}, TypeError, "got set"),
    (["enc.conv", 1.5], TypeError, r"must hold names \(str\) or subscripts \(int\), got 1\.5"),
    (["enc.conv", True], TypeError, r"got True \(bool\)"),
    (["enc.conv", Opaque()], TypeError, "Opaque"),
    (["enc.conv", ["enc.bn"]], TypeError, "got names and lists in one"),
    # consumed in the same call
    (
        [["enc.conv", "enc.bn"], ["blocks.0", "blocks.1", "enc.bn"]],
        FusionError,
        r"'enc\.bn' of \['blocks\.0', 'blocks\.1', 'enc\.bn'\] was consumed by an earlier list of "
        r"this call, \['enc\.conv', 'enc\.bn'\]",
    ),
    # types
    (
        ["conv1d", "bn1d"],
        NotImplementedError,
        r"\(Conv1d, BatchNorm1d\), a sequence that cannot be fused: a group begins with Conv2d, "
        r"ConvTranspose2d or Linear, but 'conv1d' is a Conv1d",
    ),
    (
        ["enc.conv", "enc.act", "enc.bn"],
        NotImplementedError,
        r"nothing can follow \(Conv2d, ReLU\)",
    ),
    (
        ["enc.conv", "enc.bn", "tanh"],
        NotImplementedError,
        r"what can follow \(Conv2d, BatchNorm2d\) is ReLU, ReLU6 or FloatFunctional, but 'tanh' is "
        r"a Hardtanh\(-1\.0, 1\.0\)",
    ),
    (["enc.conv", "tight"], NotImplementedError, r"'tight' is a Hardtanh\(0, 1\)"),
    (["fc", "enc.bn"], NotImplementedError, r"can follow \(Linear\) is BatchNorm1d, ReLU, ReLU6"),
    (["enc.conv", "norm"], NotImplementedError, "can follow \\(Conv2d\\) is BatchNorm2d"),
    (["enc", "blocks"], NotImplementedError, r"\(Encoder, ModuleList\)"),
    (["padded", "enc.bn"], TypeError, "'padded' is a PaddedConv, a subclass of Conv2d: .* exact"),
    (["enc.conv", "norm_act"], TypeError, "'norm_act' is a NormAct, a subclass of BatchNorm2d"),
    (["lazy", "enc.bn"], TypeError, "'lazy' is a LazyConv2d"),
    (
        ["enc.conv", "wide"],
        FusionError,
        r"'wide' must normalize the 4 channels of 'enc",
    ),
]


@pytest.mark.parametrize(
    ("lists", "kind", "text"),
    REFUSALS,
    ids=[ascii(r[0])[:60] if r[0] != [10**5000, 1] else "huge" for r in REFUSALS],
)
@pytest.mark.parametrize("inplace", [False, True])
def test_each_refusal_is_clear_and_changes_nothing(lists, kind, text, inplace):
    model = Net()
    before = snapshot(model)
    with pytest.raises(kind, match=text):
        fuse_modules(model, lists, inplace=inplace)
    assert is_same(before, snapshot(model))


@pytest.mark.parametrize(
    "bad",
    [["enc.conv", "oops"], ["conv1d", "bn1d"], ["padded", "wide"], ["enc.conv"]],
    ids=["name", "types", "subclass", "single"],
)
def test_good_lists_before_a_bad_one_are_not_applied(bad):
    model = Net()
    before = snapshot(model)
    with pytest.raises((ValueError, TypeError, NotImplementedError)):
        fuse_modules(
            model, [["blocks.0", "blocks.1", "blocks.2"], ["fc", "norm"], bad], inplace=True
        )
    assert is_same(before, snapshot(model))
    fuse_modules(model, [["blocks.0", "blocks.1", "blocks.2"], ["fc", "norm"]], inplace=True)
    assert not is_same(before, snapshot(model))


def test_fusion_error_is_a_value_error():
    assert issubclass(FusionError, ValueError)


@pytest.mark.parametrize("model", [None, "model", nn.Module, torch.zeros(1)])
def test_the_model_must_be_a_module(model):
    with pytest.raises(TypeError, match="'model' must be a module, got"):
        fuse_modules(model, ["a", "b"])


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ({"fuser_func": 3}, TypeError, "'fuser_func' must be a function, got 3"),
        ({"fuse_custom_config_dict": 3}, TypeError, "must be a dict, got int"),
        ({"fuse_custom_config_dict": {"x": 1}}, ValueError, r"must have the one key.*got \['x'\]"),
        (
            {"fuse_custom_config_dict": {"additional_fuser_method_mapping": {nn.Conv2d: print}}},
            TypeError,
            "must map tuples of classes, got the key",
        ),
        (
            {"fuse_custom_config_dict": {"additional_fuser_method_mapping": {(nn.Conv2d,): 1}}},
            TypeError,
            "must map to functions, got 1",
        ),
        ({"mode": "fold"}, ValueError, "'mode' must be one of 'auto', 'fuse_bn'.*got 'fold'"),
        ({"mode": 3}, ValueError, "'mode' must be one of"),
    ],
)
def test_other_arguments_are_checked(arguments, kind, text):
    with pytest.raises(kind, match=text):
        fuse_modules(Net(), ["enc.conv", "enc.bn"], **arguments)


@pytest.mark.parametrize("place", ["root", "inside"])
def test_a_data_parallel_wrapper_is_refused_with_the_inner_module(place):
    model = nn.DataParallel(Encoder())
    if place == "root":
        for names in (["conv", "bn"], ["module.conv", "module.bn"]):
            text = r"the model is wrapped in DataParallel: pass the inner module, model\.module"
            with pytest.raises(FusionError, match=text):
                fuse_modules(model, names)
        return
    outer = nn.ModuleDict({"net": model})
    with pytest.raises(FusionError, match=r"'net' is wrapped in DataParallel.*model\.net\.module"):
        fuse_modules(outer, ["net.module.conv", "net.module.bn"])


MIXED = [
    ({"conv"}, "conv: eval, bn: train, act: train"),
    ({"act"}, "conv: train, bn: train, act: eval"),
    ({"conv", "act"}, "conv: eval, bn: train, act: eval"),
    ({"conv", "bn"}, "conv: eval, bn: eval, act: train"),
]


@pytest.mark.parametrize(("evals", "text"), MIXED)
@pytest.mark.parametrize("mode", ["auto", "fuse_bn", "with_bn"])
def test_mixed_modes_list_each_name_and_its_mode(evals, text, mode):
    model = Encoder()
    for name in evals:
        getattr(model, name).eval()
    with pytest.raises(FusionError, match=text):
        fuse_modules(model, ["conv", "bn", "act"], mode=mode)


def weight_norm(conv):
    with pytest.warns(FutureWarning, match="weight_norm"):
        nn.utils.weight_norm(conv)


SPECIAL_WEIGHTS = {
    "remove_weight_norm": weight_norm,
    "parametrize.remove_parametrizations": nn.utils.parametrizations.weight_norm,
    "remove_spectral_norm": nn.utils.spectral_norm,
    r"prune.remove\(module, 'weight'\)": lambda m: prune.l1_unstructured(m, "weight", 0.3),
    r"prune.remove\(module, 'bias'\)": lambda m: prune.l1_unstructured(m, "bias", 0.3),
}


@pytest.mark.parametrize("remedy", SPECIAL_WEIGHTS)
@pytest.mark.parametrize("inplace", [False, True])
def test_parametrized_weights_are_refused_with_what_to_remove(remedy, inplace):
    model = Encoder()
    SPECIAL_WEIGHTS[remedy](model.conv)
    with pytest.raises(FusionError, match=rf"'conv' must hold.*{remedy}.* first"):
        fuse_modules(model, ["conv", "bn"], inplace=inplace)


def test_a_forward_replaced_on_the_instance_is_refused():
    model = Encoder()
    model.conv.forward = lambda x: x
    with pytest.raises(FusionError, match="'conv' must compute what its class does"):
        fuse_modules(model, ["conv", "bn"])


@pytest.mark.parametrize("inplace", [False, True])
def test_a_model_that_cannot_be_copied_is_fused_in_place_only(inplace):
    model = Net()
    prune.l1_unstructured(model.blocks[0], "weight", 0.5)  # its weight is no leaf any more
    model.lock = threading.Lock()
    before = snapshot(model)
    if inplace:
        fuse_modules(model, ["enc.conv", "enc.bn"], inplace=True)
        return
    with pytest.raises(FusionError, match=r"'model' must be one that .* can copy.*inplace=True"):
        fuse_modules(model, ["enc.conv", "enc.bn"])
    assert is_same(before, snapshot(model))
