"""What is validated is what is deployed: every stage equals prepared eval to the bit."""

from __future__ import annotations

import itertools

import pytest
import torch
from networks import NETWORKS, randomize
from stages import assert_all_equal, later_stages, prepared, script
from torch import Tensor, nn

from horizon_plugin.quantization import (
    DeQuantStub,
    FloatFunctional,
    QuantStub,
    convert,
    fuse_modules,
    get_default_qat_out_qconfig,
    get_default_qat_qconfig,
    prepare_qat,
)

ACTS = {"": None, "relu": nn.ReLU, "relu6": nn.ReLU6}


class PatternNet(nn.Module):
    """stub, one group of the given kind, stub; the skip is a convolution of the same input."""

    __constants__ = ("has_add", "swap")

    def __init__(self, base: str, bn: bool, add: bool, act: str, swap: bool = False, **kwargs):
        super().__init__()
        inputs, outputs = 6, 8
        self.quant = QuantStub()
        self.dequant = DeQuantStub()
        if base == "linear":
            self.base: nn.Module = nn.Linear(inputs, outputs)
            self.bn: nn.Module = nn.BatchNorm1d(outputs) if bn else nn.Identity()
            self.skip: nn.Module = nn.Linear(inputs, outputs)
        elif base == "conv":
            self.base = nn.Conv2d(inputs, outputs, 3, padding=1, **kwargs)
            self.bn = nn.BatchNorm2d(outputs) if bn else nn.Identity()
            self.skip = nn.Conv2d(inputs, outputs, 1, stride=kwargs.get("stride", 1))
        else:
            self.base = nn.ConvTranspose2d(inputs, outputs, 2, stride=2, **kwargs)
            self.bn = nn.BatchNorm2d(outputs) if bn else nn.Identity()
            self.skip = nn.ConvTranspose2d(inputs, outputs, 2, stride=2)
        if add:
            self.add = FloatFunctional()
        else:
            del self.skip
        self.act = nn.Identity() if act == "" else ACTS[act]()
        self.has_add = add
        self.swap = swap
        members = ["base"] + ["bn"] * bn + ["add"] * add + ["act"] * (act != "")
        self.members = members

    def forward(self, x: Tensor) -> Tensor:
        x = self.quant(x)
        y = self.bn(self.base(x))
        if self.has_add:
            s = self.skip(x)
            y = self.add.add(s, y) if self.swap else self.add.add(y, s)
        return self.dequant(self.act(y))


def pattern_input(base: str) -> Tensor:
    return torch.randn(5, 6) if base == "linear" else torch.randn(2, 6, 6, 5)


def fused_pattern(net: PatternNet) -> PatternNet:
    net = randomize(net).train()
    if len(net.members) > 1:
        fuse_modules(net, net.members, inplace=True)
    return net


PATTERNS = [
    (base, bn, add, act)
    for base, bn, add, act in itertools.product(
        ("conv", "conv_transpose", "linear"), (False, True), (False, True), ACTS
    )
]


@pytest.mark.parametrize(("base", "bn", "add", "act"), PATTERNS)
def test_every_stage_of_every_pattern_gives_the_same_bits(base, bn, add, act):
    x = pattern_input(base)
    model = prepared(fused_pattern(PatternNet(base, bn, add, act)), x)
    assert_all_equal(later_stages(model, x))


@pytest.mark.parametrize("backend", ["horizon", "tensorrt", "x86"])
@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("base", ["conv", "conv_transpose", "linear"])
def test_presets_and_operand_orders_keep_the_bits(base, swap, backend):
    x = pattern_input(base)
    model = prepared(fused_pattern(PatternNet(base, True, True, "relu6", swap)), x, backend)
    assert_all_equal(later_stages(model, x))


CONV_ARGUMENTS = [
    {"groups": 2, "stride": 2},
    {"dilation": 2, "bias": False},
    {"padding_mode": "reflect"},
    {"padding_mode": "replicate", "stride": 2},
    {"padding_mode": "circular"},
]


@pytest.mark.parametrize("arguments", CONV_ARGUMENTS, ids=str)
@pytest.mark.parametrize("backend", ["horizon", "x86"])
def test_convolution_arguments_keep_the_bits(arguments, backend):
    x = torch.randn(2, 6, 9, 8) + 0.5
    net = PatternNet("conv", True, False, "relu", **arguments)
    model = prepared(fused_pattern(net), x, backend)
    assert_all_equal(later_stages(model, x))


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("padding", ["same", "valid", (2, 0)])
@pytest.mark.parametrize("kernel", [(2, 4), 3])
def test_named_and_asymmetric_padding_keeps_the_bits(padding, kernel):
    x = torch.randn(2, 3, 8, 7)
    net = nn.Sequential(
        QuantStub(), nn.Conv2d(3, 5, kernel, padding=padding), nn.ReLU(), DeQuantStub()
    ).train()
    fuse_modules(net, [1, 2], inplace=True)
    model = prepared(net, x)
    float_shape = nn.Conv2d(3, 5, kernel, padding=padding)(x).shape
    assert model(x).shape == float_shape
    assert_all_equal(later_stages(model, x))


@pytest.mark.parametrize("arguments", [{"groups": 2}, {"output_padding": 1}, {"bias": False}])
def test_transposed_convolution_arguments_keep_the_bits(arguments):
    x = torch.randn(2, 6, 5, 4)
    net = PatternNet("conv_transpose", True, False, "relu", **arguments)
    model = prepared(fused_pattern(net), x)
    assert_all_equal(later_stages(model, x))


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("backend", ["horizon", "x86"])
@pytest.mark.parametrize("name", NETWORKS)
def test_every_stage_of_the_networks_gives_the_same_bits(name, backend, channels_last):
    net = NETWORKS[name]().train()
    fuse_modules(net, net.groups(), inplace=True)
    x = torch.randn(2, 3, 32, 32)
    if channels_last:
        x = x.to(memory_format=torch.channels_last)
        net = net.to(memory_format=torch.channels_last)
    model = prepared(net, x, backend)
    assert_all_equal(later_stages(model, x))


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_folded_in_eval_mode_prepares_and_converts(name):
    net = randomize(NETWORKS[name]()).eval()
    x = torch.randn(2, 3, 32, 32)
    expected = net(x)
    fuse_modules(net, net.groups(), inplace=True)
    assert not any(isinstance(m, nn.BatchNorm2d) for m in net.modules())
    torch.testing.assert_close(net(x), expected, rtol=1e-4, atol=1e-4)
    net.train()
    model = prepared(net, x)
    assert_all_equal(later_stages(model, x))


@pytest.mark.parametrize("name", NETWORKS)
def test_quantization_costs_little_signal(name):
    net = randomize(NETWORKS[name]()).eval()
    x = torch.randn(4, 3, 32, 32)
    expected = net(x).detach()
    fuse_modules(net, net.groups(), inplace=True)
    net.qconfig = get_default_qat_qconfig()
    model = prepare_qat(net, inplace=True).train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.eval()
    model(x)  # observes: the first batch sets the ranges
    error = (model.eval()(x) - expected).square().sum()
    signal_to_noise = 10 * torch.log10(expected.square().sum() / error)
    assert signal_to_noise > 20  # dB


def test_the_training_forward_differs_from_eval_by_at_most_one_code():
    net = randomize(NETWORKS["resnet18"]()).eval()
    x = torch.randn(2, 3, 32, 32)
    fuse_modules(net, net.groups(), inplace=True)
    net.qconfig = get_default_qat_qconfig()
    model = prepare_qat(net, inplace=True)
    model.train()
    model(x)
    seen = {}

    def keep(stage, name):
        return lambda module, args, y: seen.__setitem__((stage, name), (args[0], y))

    names = [n for n, m in model.named_modules() if n.endswith(("conv1", "downsample.0"))]
    assert len(names) > 5
    for name in names:
        model.get_submodule(name).register_forward_hook(keep("eval", name))
    model.eval()(x)
    for name in names:
        layer = model.get_submodule(name)
        given, y_eval = seen["eval", name]
        quantizer = layer.activation_post_process
        layer.train()
        quantizer.observer_enabled = False
        y_train = layer(given)
        codes = (y_train - y_eval) / quantizer.scale
        assert codes.abs().max() < 1.01


def test_a_high_precision_output_is_float_and_exact():
    net = NETWORKS["resnet18"]().train()
    fuse_modules(net, net.groups(), inplace=True)
    net.qconfig = get_default_qat_qconfig()
    net.fc.qconfig = get_default_qat_out_qconfig()
    x = torch.randn(2, 3, 32, 32)
    model = prepare_qat(net, inplace=True)
    model(x)
    outputs = later_stages(model.eval(), x)
    assert_all_equal(outputs)
    int8 = convert(model)
    assert int8.fc.scale is None
    assert outputs["converted"].dtype == torch.float32


def test_scripting_a_module_called_with_two_scales_is_refused_and_tracing_is_exact():
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.quant_a, self.quant_b = QuantStub(), QuantStub()
            self.head = nn.Conv2d(3, 4, 1)
            self.out_a, self.out_b = DeQuantStub(), DeQuantStub()

        def forward(self, x: Tensor) -> Tensor:
            a = self.out_a(self.head(self.quant_a(x)))
            b = self.out_b(self.head(self.quant_b(10 * x)))
            return a + b

    x = torch.randn(2, 3, 4, 4)
    model = prepared(Shared(), x)
    assert model.quant_a.activation_post_process.scale < (
        model.quant_b.activation_post_process.scale / 5
    )
    with torch.no_grad():
        expected = model(x)
        int8 = convert(model)
        assert torch.equal(int8(x), expected)
        with pytest.raises(
            RuntimeError, match=r"head is called with results of quant_a and quant_b"
        ):
            script(int8)
        from stages import trace

        assert torch.equal(trace(int8, x)(x), expected)


def test_state_dicts_load_strictly_into_a_fresh_model_of_the_same_stage():
    def fused() -> nn.Module:
        net = NETWORKS["mobilenet_v2"]().train()
        fuse_modules(net, net.groups(), inplace=True)
        return net

    x = torch.randn(2, 3, 32, 32)
    trained = fused()
    trained.qconfig = get_default_qat_qconfig()
    trained = prepare_qat(trained, inplace=True)
    trained(x)
    expected = trained.eval()(x)

    fresh = fused()
    fresh.qconfig = get_default_qat_qconfig()
    fresh = prepare_qat(fresh, inplace=True).eval()
    fresh.load_state_dict(trained.state_dict(), strict=True)
    assert torch.equal(fresh(x), expected)

    int8 = convert(trained)
    other = fused()
    other.qconfig = get_default_qat_qconfig()
    other = prepare_qat(other, inplace=True).eval()
    with pytest.warns(UserWarning, match="no range was ever observed in quant"):
        other = convert(other)
    other.load_state_dict(int8.state_dict(), strict=True)
    assert torch.equal(other(x), expected)
    with pytest.raises(ValueError, match=r"must be int8 codes, got torch.float32"):
        other.load_state_dict(trained.state_dict(), strict=False)
    assert torch.equal(other(x), expected)


@pytest.mark.parametrize("high_precision", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_models_of_other_dtypes_keep_dtype_and_bits_through_every_stage(dtype, high_precision):
    net = nn.Sequential(QuantStub(), nn.Conv2d(3, 5, 3), nn.ReLU(), DeQuantStub()).to(dtype)
    net.qconfig = get_default_qat_qconfig()
    if high_precision:
        net[1].qconfig = get_default_qat_out_qconfig()
        net[2] = nn.Identity()
    x = torch.randn(2, 3, 8, 8).to(dtype)
    model = prepare_qat(net.train(), inplace=True)
    model(x)
    outputs = later_stages(model.eval(), x)
    assert outputs["converted"].dtype == dtype
    assert_all_equal(outputs)
