"""A fused float module equals the plain chain: output, every gradient, running statistics."""

from __future__ import annotations

import copy

import pytest
import torch
from fuse_models import (
    ADD_PATTERNS,
    BN_PATTERNS,
    BY_NAME,
    PATTERNS,
    Chain,
    make_input,
    names_of,
    pair,
    pattern_id,
    randomize,
    run,
    slot_of,
)
from torch import nn

from horizon_plugin.nn import intrinsic
from horizon_plugin.quantization import FusionError, fuse_modules

GEOMETRIES = {
    "plain": {},
    "no bias": {"bias": False},
    "strided": {"stride": 2, "padding": 1},
    "dilated": {"dilation": 2, "padding": 2},
    "grouped": {"groups": 2, "bias": False},
}


def assert_same(got: dict, expected: dict) -> None:
    """Bit for bit: a live float group runs the very ops of the chain."""
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(got[name], value), name


def assert_close(got: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = 1e-5 if expected.dtype == torch.float32 else 1e-12
    scale = expected.abs().max().item()
    assert scale > 0.1
    torch.testing.assert_close(got, expected, rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize("pattern", PATTERNS, ids=pattern_id)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["fp32", "fp64"])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_a_live_group_equals_its_chain_bit_for_bit(pattern, dtype, training):
    chain, plain, x, skip = pair(pattern, dtype)
    fused = fuse_modules(chain.train(training), names_of(pattern), mode="with_bn")
    plain.train(training)
    for _ in range(2):
        assert_same(run(fused, x, skip), run(plain, x, skip))


@pytest.mark.parametrize("pattern", PATTERNS, ids=pattern_id)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["fp32", "fp64"])
def test_a_folded_group_equals_its_chain_to_rounding(pattern, dtype):
    chain, plain, x, skip = pair(pattern, dtype)
    fused = fuse_modules(chain.eval(), names_of(pattern))
    got, expected = run(fused, x, skip), run(plain.eval(), x, skip)
    for name in ("output", "x.grad", *(["skip.grad"] if pattern.variant.has_add else [])):
        assert_close(got[name], expected[name])


@pytest.mark.parametrize("base", ["ConvBNAddReLU62d", "ConvTransposeBNAddReLU62d"])
@pytest.mark.parametrize("geometry", GEOMETRIES.values(), ids=GEOMETRIES.keys())
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_geometry_and_memory_format_do_not_matter(base, geometry, memory_format, training):
    pattern = BY_NAME[base]
    chain, plain, x, skip = pair(pattern, **geometry)
    chain, plain = (m.train(training).to(memory_format=memory_format) for m in (chain, plain))
    x = x.to(memory_format=memory_format)
    fused = fuse_modules(chain, names_of(pattern))
    got, expected = run(fused, x, skip), run(plain, x, skip)
    if training:
        assert_same(got, expected)
    else:
        assert_close(got["output"], expected["output"])
        assert_close(got["x.grad"], expected["x.grad"])


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_padding_modes_are_kept(mode):
    pattern = BY_NAME["ConvBNReLU2d"]
    chain, plain, x, skip = pair(pattern, padding=2, padding_mode=mode)
    assert_same(run(fuse_modules(chain, names_of(pattern)), x, skip), run(plain, x, skip))


def test_a_transposed_convolution_takes_its_output_size():
    for name in ("ConvTransposeBNReLU2d", "ConvTransposeBNAdd2d"):
        pattern = BY_NAME[name]
        chain, plain, x, _ = pair(pattern, stride=2)
        fused = fuse_modules(chain, names_of(pattern))
        for size in ([19, 15], [20, 16]):
            expected = plain.bn(plain.base(x, output_size=size))
            got = fused.bn(fused.base(x, output_size=size))
            if pattern.variant.has_add:
                skip = torch.randn_like(expected)
                got, expected = fused.add.add(got, skip), expected + skip
            else:
                expected = expected.relu()
            assert got.shape[2:] == torch.Size(size)
            assert torch.equal(got, expected)


@pytest.mark.parametrize("pattern", ADD_PATTERNS, ids=pattern_id)
def test_either_operand_broadcasts_and_gradients_are_reduced(pattern):
    chain, plain, x, skip = pair(pattern)
    fused = fuse_modules(chain, names_of(pattern))
    narrow = skip[:1, :, :1] if skip.dim() == 4 else skip[:1]
    assert_same(run(fused, x, narrow), run(plain, x, narrow))
    wide = torch.randn(2, *skip.shape)
    assert_same(run(fused, x, wide), run(plain, x, wide))


@pytest.mark.parametrize("pattern", ADD_PATTERNS, ids=pattern_id)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_add_relu_computes_the_relu_inside(pattern, training):
    chain, plain, x, skip = pair(pattern)

    def forward(self, x, skip):
        z = self.bn(self.base(x)) if self.has_bn else self.base(x)
        z = self.add.add_relu(z, skip)
        return self.act(z) if self.has_act else z

    cls = type("ChainRelu", (Chain,), {"forward": forward})
    chain.__class__ = plain.__class__ = cls
    fused = fuse_modules(chain.train(training), names_of(pattern))
    got, expected = run(fused, x, skip), run(plain.train(training), x, skip)
    assert expected["output"].min() == 0
    if training:
        assert_same(got, expected)
    else:
        assert_close(got["output"], expected["output"])


@pytest.mark.parametrize("make", [nn.ReLU6, lambda: nn.Hardtanh(0, 6)], ids=["relu6", "hardtanh"])
def test_relu6_clips_at_6_and_its_gradient_is_0_at_and_outside_the_ends(make):
    conv = nn.Conv2d(1, 1, 1, bias=False)
    nn.init.ones_(conv.weight)
    model = fuse_modules(nn.Sequential(conv, make()), [0, 1])
    assert type(model[0]) is intrinsic.ConvReLU62d
    x = torch.tensor([-1.0, 0.0, 1e-3, 3.0, 6.0, 20.0]).view(1, 1, 1, 6).requires_grad_()
    y = model(x)
    assert y.flatten().tolist() == pytest.approx([0, 0, 1e-3, 3, 6, 6])
    y.sum().backward()
    assert x.grad.flatten().tolist() == [0, 0, 1, 1, 0, 0]


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("momentum", [0.1, 0.7, None])
@pytest.mark.parametrize("eps", [1e-5, 0.5])
def test_the_batch_norm_keeps_its_eps_momentum_and_affinity(affine, momentum, eps):
    pattern = BY_NAME["ConvBNReLU2d"]
    bn = nn.BatchNorm2d(8, eps=eps, momentum=momentum, affine=affine)
    chain = Chain(nn.Conv2d(6, 8, 3), pattern, bn)
    plain, x = copy.deepcopy(chain), make_input(pattern)
    fused = fuse_modules(chain, names_of(pattern))
    assert len(list(fused.parameters())) == len(list(plain.parameters()))
    for _ in range(3):
        assert_same(run(fused, x, x), run(plain, x, x))
    folded = fuse_modules(plain.eval(), names_of(pattern))
    assert_close(folded(x, x), plain(x, x))


@pytest.mark.parametrize("pattern", BN_PATTERNS, ids=pattern_id)
def test_a_frozen_batch_norm_keeps_its_statistics_through_train(pattern):
    chain, plain, x, skip = pair(pattern)
    chain.bn.eval().requires_grad_(False)
    fused = fuse_modules(chain, names_of(pattern))
    group = getattr(fused, slot_of(pattern))
    assert group.bn_frozen and "bn_frozen=True" in repr(group)
    before = group.bn.running_mean.clone()
    for step in range(2):
        fused.train()
        plain.train()
        plain.bn.eval().requires_grad_(False)
        assert not group.bn.training and group.training
        plain.bn.zero_grad()
        got, expected = run(fused, x, skip), run(plain, x, skip)
        for name in ("output", "x.grad", "base.weight.grad", "base.bias.grad"):
            assert torch.equal(got[name], expected[name]), (name, step)
        fused.eval()
    assert torch.equal(group.bn.running_mean, before)
    assert group.bn.weight.grad is None


def test_members_are_called_with_the_first_ones_unbatched_input():
    pattern = BY_NAME["ConvReLU2d"]
    chain, plain, x, skip = pair(pattern)
    assert torch.equal(fuse_modules(chain, names_of(pattern))(x[0], skip), plain(x[0], skip))


@pytest.mark.parametrize("training", [True, False], ids=["live", "folded"])
def test_linear_with_a_batch_norm_refuses_other_than_2d_input(training):
    model = nn.Sequential(nn.Linear(4, 6), randomize(nn.BatchNorm1d(6)), nn.ReLU()).train(training)
    fused = fuse_modules(model, [0, 1, 2])
    assert fused(torch.randn(5, 4)).shape == (5, 6)
    with pytest.raises(ValueError, match=r"0: 'input' must be 2-D, \[N, features\].*got 3"):
        fused(torch.randn(5, 6, 4))


def test_a_transposed_convolution_bias_free_group_with_zero_gamma_stays_finite():
    pattern = BY_NAME["ConvTransposeBNReLU62d"]
    chain, plain, x, skip = pair(pattern, bias=False)
    for model in (chain, plain):
        with torch.no_grad():
            model.bn.weight[:3] = torch.tensor([0.0, 1e-8, -1.0])
    got, expected = run(fuse_modules(chain, names_of(pattern)), x, skip), run(plain, x, skip)
    assert_same(got, expected)
    assert all(torch.isfinite(value).all() for value in got.values())


def test_batch_norm_without_statistics_trains_live_but_cannot_be_folded():
    bn = nn.BatchNorm2d(8, track_running_stats=False)
    pattern = BY_NAME["ConvBN2d"]
    chain = Chain(nn.Conv2d(6, 8, 3), pattern, bn)
    plain, x = copy.deepcopy(chain), make_input(pattern)
    assert_same(run(fuse_modules(chain, names_of(pattern)), x, x), run(plain, x, x))
    with pytest.raises(FusionError, match="'bn' must have running statistics to be folded"):
        fuse_modules(chain.eval(), names_of(pattern))
