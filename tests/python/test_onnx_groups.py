"""One fused group as ONNX: within one code, negative and zero batch norm factors, biases."""

from __future__ import annotations

import onnx
import pytest
import torch
from onnx_run import LEVELS, operators, optimized_operators, run, steps_apart
from residual import IMAGE, trained_residual
from stages import prepared
from test_exact_stages import CONV_ARGUMENTS, PATTERNS, PatternNet, fused_pattern, pattern_input
from torch import Tensor, nn

from horizon_plugin.export import to_onnx
from horizon_plugin.quantization import (
    DeQuantStub,
    QuantStub,
    convert,
    fuse_modules,
    get_default_qat_out_qconfig,
    get_default_qat_qconfig,
    prepare_qat,
)


def assert_within_one_code(model: nn.Module, x: Tensor, path) -> None:
    to_onnx(model, x, path)
    with torch.no_grad():
        expected = convert(model)(x)
    assert expected.unique().numel() > 3
    for level in LEVELS:
        (result,) = run(path, x, level=level)
        assert result.shape == expected.shape
        assert steps_apart(result, expected).max() < 1.01


# A group without a batch norm is one with factors of 1.
@pytest.mark.parametrize(("base", "bn", "add", "act"), [row for row in PATTERNS if row[1]])
def test_every_pattern_is_within_one_code(base, bn, add, act, tmp_path):
    x = pattern_input(base)
    model = prepared(fused_pattern(PatternNet(base, bn, add, act)), x, steps=1)
    assert_within_one_code(model, x, tmp_path / "net.onnx")
    made = optimized_operators(tmp_path / "net.onnx")
    # With an add the sums enter it unrounded, which int8 kernels cannot; its skip is one of them.
    expected = {"conv": "QLinearConv", "linear": "QGemm", "conv_transpose": "ConvTranspose"}
    count = 2 if add and base != "conv" else 1
    assert made[expected[base]] == count


@pytest.mark.parametrize("arguments", CONV_ARGUMENTS, ids=str)
@pytest.mark.parametrize("backend", ["horizon", "x86"])
def test_convolution_arguments_are_within_one_code(arguments, backend, tmp_path):
    x = torch.randn(2, 6, 9, 8) + 0.5
    model = prepared(
        fused_pattern(PatternNet("conv", True, False, "relu", **arguments)), x, backend
    )
    assert_within_one_code(model, x, tmp_path / "net.onnx")


@pytest.mark.parametrize("groups", [2, 6])
def test_transposed_convolutions_with_groups_keep_their_scales(groups, tmp_path):
    net = nn.Sequential(
        QuantStub(),
        nn.ConvTranspose2d(6, 12, 3, 2, 1, output_padding=1, groups=groups, dilation=2),
        DeQuantStub(),
    ).train()
    with torch.no_grad():  # each output channel has a scale of its own
        net[1].weight.mul_(torch.linspace(0.1, 3, 6 * 12 // groups).reshape(6, -1, 1, 1))
    x = torch.randn(2, 6, 5, 4)
    assert_within_one_code(prepared(net, x), x, tmp_path / "net.onnx")


def conv_net(outputs: int = 4) -> nn.Sequential:
    net = nn.Sequential(
        QuantStub(), nn.Conv2d(3, outputs, 3), nn.BatchNorm2d(outputs), nn.ReLU(), DeQuantStub()
    )
    return net.train()


def test_negative_and_zero_batch_norm_factors_are_folded_into_the_codes(tmp_path):
    net = conv_net()
    with torch.no_grad():
        net[2].weight.copy_(torch.tensor([1.5, -0.7, 0.0, -2.0]))
        net[2].bias.copy_(torch.tensor([0.1, 0.2, 0.9, -0.3]))
    fuse_modules(net, [1, 2, 3], inplace=True)
    net.qconfig = get_default_qat_qconfig()
    model = prepare_qat(net, inplace=True)
    x = torch.randn(2, 3, 8, 8)
    model(x)
    model.eval()
    assert_within_one_code(model, x, tmp_path / "net.onnx")
    constants = {
        constant.name: torch.from_numpy(onnx.numpy_helper.to_array(constant).copy())
        for constant in onnx.load(tmp_path / "net.onnx").graph.initializer
    }
    codes = convert(model)[1].weight
    sign = torch.tensor([1, -1, 0, -1], dtype=torch.int8).reshape(4, 1, 1, 1)
    assert torch.equal(constants["1.weight"], codes * sign)
    assert (constants["1.weight_scale"] > 0).all()


def with_dead_channel(weight: float) -> nn.Module:
    """One channel of tiny or no weights, bias 5 and an input scale near 0.5."""
    net = nn.Sequential(QuantStub(), nn.Conv2d(3, 4, 1), DeQuantStub()).train()
    with torch.no_grad():
        net[1].weight[2] = weight
        net[1].bias[2] = 5.0
    net.qconfig = get_default_qat_qconfig()
    model = prepare_qat(net, inplace=True)
    model(63.0 * torch.randn(2, 3, 4, 4).clamp(-1, 1))
    return model.eval()


def test_the_bias_of_a_dead_channel_does_not_saturate(tmp_path):
    model = with_dead_channel(0.0)
    assert_within_one_code(model, 63.0 * torch.randn(2, 3, 4, 4), tmp_path / "net.onnx")
    assert optimized_operators(tmp_path / "net.onnx")["QLinearConv"] == 1


def test_a_bias_beyond_int32_stays_float_and_is_warned_about_by_name(tmp_path):
    # 5 / (0.5 * 2^-23 * |factor|): a batch norm factor of 1e-4 takes it to 8.4e11.
    net = conv_net()
    with torch.no_grad():
        net[1].weight[1] = 1e-7
        net[2].weight[1], net[2].bias[1] = 1e-7, 5.0
    fuse_modules(net, [1, 2, 3], inplace=True)
    net.qconfig = get_default_qat_qconfig()
    model = prepare_qat(net, inplace=True)
    x = torch.randn(2, 3, 8, 8)
    model(x)
    model.eval()
    with pytest.warns(UserWarning, match="to_onnx: the bias of 1 does not fit int32"):
        to_onnx(model, x, tmp_path / "net.onnx")
    with torch.no_grad():
        expected = convert(model)(x)
    for level in LEVELS:
        (result,) = run(tmp_path / "net.onnx", x, level=level)
        assert steps_apart(result, expected).max() < 1.01
    assert operators(tmp_path / "net.onnx")["Add"] == 1


def test_a_group_with_an_add_is_named_by_its_slot(tmp_path):
    model = trained_residual()
    with torch.no_grad():
        model.add.bn.weight[0], model.add.bn.bias[0] = 1e-12, 5.0
    with pytest.warns(UserWarning, match="to_onnx: the bias of add does not fit int32"):
        to_onnx(model, IMAGE, tmp_path / "net.onnx")


@pytest.mark.parametrize("base", [nn.Conv2d(3, 5, 3), nn.Linear(8, 5)], ids=["conv", "linear"])
def test_high_precision_results_are_float(base, tmp_path):
    net = nn.Sequential(QuantStub(), base, DeQuantStub()).train()
    net.qconfig = get_default_qat_qconfig()
    net[1].qconfig = get_default_qat_out_qconfig()
    model = prepare_qat(net, inplace=True)
    x = torch.randn(2, 3, 8, 8)
    model(x)
    model.eval()
    to_onnx(model, x, tmp_path / "net.onnx")
    with torch.no_grad():
        expected = convert(model)(x)
    scale, weights = model[0].activation_post_process.scale, base.weight.detach()
    # A linear layer's bias is in int32: half a unit of input scale times weight scale.
    bound = 0.51 * float(scale * weights.abs().amax() / 127) if base.weight.dim() == 2 else 1e-5
    for level in LEVELS:
        (result,) = run(tmp_path / "net.onnx", x, level=level)
        assert (result - expected).abs().max() < bound
