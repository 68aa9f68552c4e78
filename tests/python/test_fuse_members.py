"""Members that cannot be fused as they are: refused by name, in every place."""

from __future__ import annotations

import copy

import pytest
import torch
from fuse_models import is_same, snapshot
from stages import silent_jit
from torch import nn
from torch.nn.utils import prune

from horizon_plugin.quantization import FloatFunctional, FusionError, fuse_modules


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn, self.act = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()


class Odd(Encoder):
    """Members that look like others, and are not."""

    def __init__(self):
        super().__init__()
        self.scripted = silent_jit(torch.jit.script, nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()))
        self.bare = nn.Conv2d(3, 4, 3)
        weight = self.bare.weight.detach()
        del self.bare.weight
        self.bare.weight = weight
        self.hidden = FloatFunctional()
        self.hidden.add = torch.sub
        self.compiled = torch.compile(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()))


ODD = [
    (["scripted.0", "scripted.1"], FusionError, r"'scripted\.0' is a TorchScript module, which c"),
    (["conv", "scripted"], FusionError, "'scripted' is a TorchScript module, which can no"),
    (["bare", "bn"], FusionError, r"'bare' must hold 'weight' as a plain parameter, .* assign"),
    (["conv", "hidden"], FusionError, "'hidden' must compute what its class does, but its add"),
    (
        ["compiled.0", "compiled.1"],
        FusionError,
        r"'compiled' is wrapped in OptimizedModule: pass .*, model\.compiled\._orig_mod",
    ),
]


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method")
@pytest.mark.parametrize(("names", "kind", "text"), ODD, ids=[ascii(r[0]) for r in ODD])
def test_members_that_are_not_what_they_seem_are_refused(names, kind, text):
    model = Odd()
    before = snapshot(model)
    with pytest.raises(kind, match=text):
        fuse_modules(model, names, inplace=True)
    assert is_same(before, snapshot(model))


def test_a_functional_that_torch_has_prepared_is_refused():
    theirs = pytest.importorskip("torch.ao.nn.quantized")
    model = nn.ModuleDict({"conv": nn.Conv2d(3, 3, 1), "add": theirs.FloatFunctional()})
    model["add"].activation_post_process = torch.ao.quantization.MinMaxObserver()
    with pytest.raises(FusionError, match=r"'add' must not be quantized yet, .* a MinMaxObserver"):
        fuse_modules(model, ["conv", "add"])
    model["add"].activation_post_process = nn.Identity()
    model["add"].activation_post_process.register_forward_hook(print)
    with pytest.raises(FusionError, match="'add' must have no hooks on its activation_post_proc"):
        fuse_modules(model, ["conv", "add"])


def test_names_that_no_encoding_holds_are_found_as_they_are():
    model = nn.ModuleDict({"\ud800": nn.Conv2d(3, 4, 1), "?": nn.Conv2d(3, 4, 1), "b": nn.ReLU()})
    fused = fuse_modules(model, ["\ud800", "b"])
    assert type(fused["?"]) is nn.Conv2d
    assert type(fused["\ud800"]).__name__ == "ConvReLU2d"


def test_a_model_that_holds_a_scripted_part_is_fused_around_it():
    scripted = silent_jit(torch.jit.script, nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()))
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU(), scripted)
    x = torch.randn(1, 3, 4, 4)
    expected = model(x)
    for inplace in (False, True):
        fused = fuse_modules(model, [0, 1], inplace=inplace)
        assert torch.equal(fused(x), expected)


BASES = {
    "conv": (nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)),
    "transpose": (nn.ConvTranspose2d(3, 4, 1), nn.BatchNorm2d(4)),
    "linear": (nn.Linear(3, 4), nn.BatchNorm1d(4)),
}
# What is done to one member of base, batch norm, add, relu; the error, its text.
DAMAGES = {
    "a subclass of the base": (
        lambda m: setattr(m["base"], "__class__", type("Own", (type(m["base"]),), {})),
        TypeError,
        "'base' is a Own, a subclass of .*exact types only",
    ),
    "a forward of its own": (
        lambda m: setattr(m["bn"], "forward", lambda x: x),
        FusionError,
        "'bn' must compute what its class does",
    ),
    "a mixture of modes": (
        lambda m: m["base"].train(not m["base"].training),
        FusionError,
        r"one mode.*base: (eval|train), bn: .*, add: .*, act: .*Call train\(\) or eval\(\)",
    ),
    "no statistics": (
        lambda m: (
            [setattr(m["bn"], name, None) for name in ("running_mean", "running_var")],
            m["bn"].eval(),
        ),
        FusionError,
        "'bn' must have running statistics to be (folded|frozen)",
    ),
    "a weight norm": (
        lambda m: nn.utils.parametrizations.weight_norm(m["base"]),
        FusionError,
        "'base' must hold plain parameters, .*remove_parametrizations on it first",
    ),
    "a pruned weight": (
        lambda m: prune.l1_unstructured(m["base"], "weight", 0.5),
        FusionError,
        r"'base' must hold 'weight' .*prune\.remove\(module, 'weight'\) first",
    ),
    "a hook between": (
        lambda m: m["bn"].register_forward_hook(print),
        FusionError,
        r"hooks on inner members of .*'bn' \(forward hook\).*allow_inner_hooks=True",
    ),
    "a qconfig for one": (
        lambda m: setattr(m["add"], "qconfig", None),
        FusionError,
        r"must agree on their qconfig, got base: inherited, bn: inherited, add: None \(left float",
    ),
    "other channels": (
        lambda m: m.update({"bn": type(m["bn"])(5).train(m.training)}),
        FusionError,
        "'bn' must normalize the 4 channels of 'base', got 5",
    ),
    "another activation": (
        lambda m: m.update({"act": nn.SiLU().train(m.training)}),
        NotImplementedError,
        "FloatFunctional\\) is ReLU or ReLU6, but 'act' is a SiLU",
    ),
    "another norm": (
        lambda m: m.update({"bn": nn.GroupNorm(2, 4).train(m.training)}),
        NotImplementedError,
        r"what can follow \(\w+\) is BatchNorm[12]d, .* but 'bn' is a GroupNorm",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("inplace", [True, False], ids=["in place", "copy"])
def test_each_base_is_refused_alike_and_the_group_before_it_is_not_fused(
    base, training, inplace, damage
):
    layer, norm = copy.deepcopy(BASES[base])
    model = nn.ModuleDict(
        {
            "good": nn.Sequential(nn.Conv2d(1, 1, 1), nn.ReLU()),
            "base": layer,
            "bn": norm,
            "add": FloatFunctional(),
            "act": nn.ReLU(),
        }
    ).train(training)
    harm, kind, text = DAMAGES[damage]
    harm(model)
    before = snapshot(model)
    with pytest.raises(kind, match=text):
        fuse_modules(model, [["good.0", "good.1"], ["base", "bn", "add", "act"]], inplace=inplace)
    assert is_same(before, snapshot(model))


def bare_wrapper(cls: type) -> nn.Module:
    """A distributed wrapper around an encoder, as it is built but for its process group."""
    wrapper = cls.__new__(cls)
    nn.Module.__init__(wrapper)
    wrapper.module = Encoder()
    return wrapper


@pytest.mark.parametrize("cls", [nn.DataParallel, nn.parallel.DistributedDataParallel])
@pytest.mark.parametrize("names", [["conv", "bn"], ["module.conv", "module.bn"]])
def test_distributed_wrappers_are_refused_with_the_inner_module(cls, names):
    model = bare_wrapper(cls)
    text = rf"the model is wrapped in {cls.__name__}: pass the inner module, model\.module"
    with pytest.raises(FusionError, match=text):
        fuse_modules(model, names, inplace=True)
    assert type(model.module.conv) is nn.Conv2d
    fuse_modules(model.module, ["conv", "bn"], inplace=True)
    assert type(model.module.bn) is nn.Identity
