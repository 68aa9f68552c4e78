"""Folding a batch norm into fresh parameters."""

from __future__ import annotations

import copy

import pytest
import torch
from fuse_models import BY_NAME, is_same, names_of, pair, randomize, snapshot
from torch import nn

from horizon_plugin.nn import intrinsic
from horizon_plugin.quantization import FusionError, fuse_modules

BASES = {
    "conv": lambda: nn.Conv2d(6, 8, 3),
    "conv grouped": lambda: nn.Conv2d(6, 8, 3, groups=2, bias=False),
    "conv depthwise": lambda: nn.Conv2d(6, 6, 3, groups=6, padding=1),
    "conv dilated": lambda: nn.Conv2d(6, 8, 3, dilation=2, bias=False),
    "transpose square": lambda: nn.ConvTranspose2d(6, 6, 2, stride=2),
    "transpose": lambda: nn.ConvTranspose2d(6, 7, 3, bias=False),
    "transpose grouped": lambda: nn.ConvTranspose2d(6, 9, 3, groups=3, stride=2),
    "transpose depthwise": lambda: nn.ConvTranspose2d(6, 6, 3, groups=6, bias=False),
    "transpose dilated": lambda: nn.ConvTranspose2d(6, 4, 3, groups=2, dilation=2, padding=1),
}


def sequential(make, act=None, dtype=torch.float32):
    conv = make()
    layers = [conv, randomize(nn.BatchNorm2d(conv.out_channels))] + ([] if act is None else [act])
    return nn.Sequential(*layers).to(dtype).eval()


@pytest.mark.parametrize("make", BASES.values(), ids=BASES.keys())
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_a_fold_is_exact_to_rounding_for_every_base(make, memory_format):
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-13)):
        plain = sequential(make, dtype=dtype).to(memory_format=memory_format)
        fused = fuse_modules(plain, [0, 1])
        x = torch.randn(2, 6, 8, 8, dtype=dtype)
        expected = plain(x)
        error = (fused(x) - expected).abs().max() / expected.abs().max()
        assert error < tolerance
        assert fused[0].weight.stride() == plain[0].weight.stride()
        assert fused[0].weight.dtype == fused[0].bias.dtype == dtype


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("make", BASES.values(), ids=BASES.keys())
def test_half_precision_folds_are_computed_in_higher_precision(make, dtype):
    half = sequential(make).to(dtype)
    exact = copy.deepcopy(half).double()
    fused = fuse_modules(half, [0, 1])[0]
    reference = fuse_modules(exact, [0, 1])[0]
    assert fused.weight.dtype == fused.bias.dtype == dtype
    assert torch.equal(fused.weight, reference.weight.to(dtype))
    assert torch.equal(fused.bias, reference.bias.to(dtype))


def test_linear_folds_batch_norm_1d():
    for act in (None, nn.ReLU(), nn.ReLU6()):
        layers = [nn.Linear(5, 7, bias=act is None), randomize(nn.BatchNorm1d(7))]
        plain = nn.Sequential(*layers, *([act] if act else [])).eval()
        fused = fuse_modules(plain, list(range(len(plain))))
        x = torch.randn(16, 5) * 3
        torch.testing.assert_close(fused(x), plain(x), rtol=0, atol=1e-5)
        assert "batch norm folded" in repr(fused[0])


def test_a_synchronized_batch_norm_folds_like_any_other():
    conv, bn = nn.Conv2d(3, 4, 1), randomize(nn.SyncBatchNorm(4))
    fused = fuse_modules(nn.Sequential(conv, bn).eval(), [0, 1])
    same = nn.BatchNorm2d(4)
    same.load_state_dict(bn.state_dict())
    x = torch.randn(2, 3, 4, 4)
    torch.testing.assert_close(fused(x), same.eval()(conv(x)), rtol=0, atol=1e-5)
    live = fuse_modules(nn.Sequential(conv, bn).train(), [0, 1])
    assert type(live[0].bn) is nn.SyncBatchNorm


def test_a_fold_never_writes_into_old_parameters_which_may_be_tied():
    first, second = nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3)
    second.weight = first.weight
    model = nn.Sequential(first, randomize(nn.BatchNorm2d(4)), second).eval()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    weight, bias = first.weight, first.bias
    text = r"folding \['0', '1'\] unties '0\.weight' from '2\.weight': .*mode='with_bn' keeps"
    with pytest.warns(UserWarning, match=text):
        fuse_modules(model, [0, 1], inplace=True)
    assert torch.equal(weight, before["0.weight"]) and torch.equal(bias, before["0.bias"])
    assert model[2].weight is weight
    assert model[0].weight is not weight


@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_requires_grad_is_kept(trains, bias):
    model = sequential(lambda: nn.Conv2d(6, 8, 3, bias=bias)).requires_grad_(trains)
    fused = fuse_modules(model, [0, 1])
    assert fused[0].weight.requires_grad is trains
    assert fused[0].bias.requires_grad is trains
    assert isinstance(fused[0].weight, nn.Parameter)


def test_the_folded_class_has_no_batch_norm_and_its_repr_says_where_it_went():
    chain, plain, x, skip = pair(BY_NAME["ConvBNReLU2d"])
    fused = fuse_modules(chain.eval(), names_of(BY_NAME["ConvBNReLU2d"]))
    assert type(fused.base) is intrinsic.ConvReLU2d
    assert "batch norm folded into weight and bias" in repr(fused.base)
    assert sorted(dict(fused.base.named_parameters())) == ["bias", "weight"]
    assert not list(fused.base.children())
    torch.testing.assert_close(fused(x, skip), plain.eval()(x, skip), rtol=0, atol=1e-5)


@pytest.mark.parametrize("mode", ["auto", "fuse_bn", "with_bn", "with_bn_reverse_fold"])
@pytest.mark.parametrize("state", ["train", "frozen", "eval"])
def test_the_mode_and_the_training_flags_decide(mode, state):
    model = sequential(BASES["conv"]).train(state != "eval")
    if state == "frozen":
        model[1].eval()
    plain = copy.deepcopy(model)
    fused = fuse_modules(model, [0, 1], mode=mode)[0]
    folds = mode == "fuse_bn" or (mode == "auto" and state == "eval")
    assert type(fused) is (intrinsic.Conv2d if folds else intrinsic.ConvBN2d)
    assert fused.bn_folded is folds
    assert fused.bn_frozen is (state == "frozen" and not folds)
    x = torch.randn(2, 6, 8, 8)
    torch.testing.assert_close(fused.eval()(x), plain.eval()(x), rtol=0, atol=1e-5)


def test_weights_on_another_device_than_the_statistics_are_refused():
    model = sequential(BASES["conv"])
    model[1].to("meta")
    with pytest.raises(FusionError, match="on the device of its layer to be folded, got meta"):
        fuse_modules(model, [0, 1])
    assert type(model[0]) is nn.Conv2d


def test_a_model_on_the_meta_device_folds():
    fused = fuse_modules(sequential(BASES["transpose grouped"]).to("meta"), [0, 1])
    assert fused[0].weight.is_meta and fused[0].bias.shape == (9,)


# How two modules come to share parameters, and what the warning says of it.
def _tie(name, other="other"):
    def tie(model):
        setattr(getattr(model, other), name, getattr(model.conv, name))

    return tie


class Tied(nn.Module):
    """A group, and a convolution beside it."""

    def __init__(self, make):
        super().__init__()
        self.conv, self.other = make(), make()
        self.bn, self.act = randomize(nn.BatchNorm2d(self.conv.out_channels)), nn.ReLU()
        self.bn2 = nn.BatchNorm2d(self.conv.out_channels)

    def forward(self, x):
        return self.act(self.bn(self.conv(x))) + self.bn2(self.other(x))


TIES = {
    "weight": (_tie("weight"), r"unties 'conv\.weight' from 'other\.weight'"),
    "bias": (_tie("bias"), r"unties 'conv\.bias' from 'other\.bias'"),
    "gamma": (
        lambda m: setattr(m.bn2, "weight", m.bn.weight),
        r"unties 'bn\.weight' from 'bn2\.weight'",
    ),
    "a parameter of the model": (
        lambda m: setattr(m, "shared", m.conv.weight),
        r"unties 'conv\.weight' from 'shared'",
    ),
    "two": (
        lambda m: (_tie("weight")(m), _tie("bias")(m)),
        r"unties 'conv\.weight' from 'other\.weight', 'conv\.bias' from 'other\.bias'",
    ),
}
GROUP = ["conv", "bn", "act"]


@pytest.mark.parametrize("tie", TIES)
@pytest.mark.parametrize(
    "base", ["conv", "conv depthwise", "transpose square", "transpose grouped"]
)
def test_a_fold_that_unties_parameters_says_so_and_leaves_the_others(tie, base):
    model = Tied(BASES[base]).eval()
    share, text = TIES[tie]
    share(model)
    x = torch.randn(2, 6, 8, 8)
    expected = model(x)
    values = {name: p.detach().clone() for name, p in model.named_parameters()}
    with pytest.warns(UserWarning, match=text) as caught:
        fused = fuse_modules(model, GROUP)
    assert len(caught) == 1 and caught[0].filename == __file__
    torch.testing.assert_close(fused(x), expected, rtol=1e-5, atol=1e-5)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, values[name])
    kept = fuse_modules(model, GROUP, mode="with_bn")
    names = [
        {n for n, q in kept.named_parameters(remove_duplicate=False) if q is p}
        for p in kept.parameters()
    ]
    assert max(map(len, names)) == 2  # still tied
    assert torch.equal(kept(x), expected)


def test_two_groups_that_share_a_weight_are_each_folded_for_themselves():
    class Siamese(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = sequential(BASES["conv"]), sequential(BASES["conv"])
            self.b[0].weight = self.a[0].weight

        def forward(self, x):
            return self.a(x), self.b(x)

    model = Siamese().eval()
    x = torch.randn(2, 6, 8, 8)
    expected = model(x)
    with pytest.warns(UserWarning) as caught:
        fused = fuse_modules(model, [["a.0", "a.1"], ["b.0", "b.1"]])
    texts = [str(warning.message) for warning in caught]
    assert ["'a.0.weight' from 'b.0.weight'" in texts[0], "from 'a.0.weight'" in texts[1]] == [1, 1]
    torch.testing.assert_close(fused(x), expected, rtol=1e-5, atol=1e-5)


def test_a_warning_about_ties_turned_into_an_error_changes_nothing():
    model = Tied(BASES["conv"]).eval()
    _tie("weight")(model)
    before = snapshot(model)
    with pytest.raises(UserWarning, match="unties"):
        fuse_modules(model, GROUP, inplace=True)
    assert is_same(before, snapshot(model))


def test_a_module_in_two_places_is_no_tie():
    block = sequential(BASES["conv"], nn.ReLU())
    model = nn.ModuleDict({"a": block, "b": block}).eval()
    fused = fuse_modules(model, ["a.0", "a.1", "a.2"])  # a warning would be an error
    assert fused["b"][0] is fused["a"][0]


@pytest.mark.parametrize("statistics", [torch.float32, torch.float64])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_half_precision_layer_folds_a_batch_norm_that_stayed_in_fp32(dtype, statistics):
    model = sequential(BASES["conv grouped"])
    model[0].to(dtype)
    model[1].to(statistics)
    exact = copy.deepcopy(model).double()
    fused = fuse_modules(model, [0, 1])[0]
    reference = fuse_modules(exact, [0, 1])[0]
    assert torch.equal(fused.weight, reference.weight.to(dtype))
    assert torch.equal(fused.bias, reference.bias.to(dtype))


@pytest.mark.parametrize("mode", ["fuse_bn", "auto"])
@pytest.mark.parametrize("surrounding", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_parameters_of_a_fold_can_be_trained_wherever_it_was_done(surrounding, mode):
    model = sequential(BASES["transpose"])
    with surrounding():
        fused = fuse_modules(model, [0, 1], mode=mode)
    fused(torch.randn(2, 6, 4, 4)).square().sum().backward()
    assert fused[0].weight.grad.abs().sum() > 0 and fused[0].bias.grad.abs().sum() > 0


def test_default_device_and_dtype_do_not_reach_a_fold():
    model = sequential(BASES["conv"])
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            fused = fuse_modules(model, [0, 1])[0]
    finally:
        torch.set_default_dtype(torch.float32)
    assert (fused.weight.dtype, fused.weight.device.type) == (torch.float32, "cpu")
    assert (fused.bias.dtype, fused.bias.device.type) == (torch.float32, "cpu")
