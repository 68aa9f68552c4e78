"""What went wrong elsewhere in the arithmetic of folds, gradients, quantizers and codes."""

from __future__ import annotations

import copy

import pytest
import torch
from networks import NETWORKS, randomize
from residual import IMAGE, Residual, prepared_residual, trained_residual
from stages import train_steps
from torch import Tensor, nn

from horizon_plugin import ops
from horizon_plugin.quantization import (
    DeQuantStub,
    FakeQuantize,
    FloatFunctional,
    QuantStub,
    convert,
    disable_fake_quant,
    disable_observer,
    fuse_modules,
    get_default_qat_out_qconfig,
    get_default_qat_qconfig,
    prepare_qat,
)


def prepare(net: nn.Module, backend: str = "") -> nn.Module:
    net.qconfig = get_default_qat_qconfig(backend=backend)
    return prepare_qat(net.train(), inplace=True)


def gradients(model: nn.Module, x: Tensor) -> list[Tensor]:
    model.zero_grad()
    model(x).square().sum().backward()
    return [p.grad for p in model.parameters()]


def signal_to_noise(y: Tensor, expected: Tensor) -> float:
    noise = (y - expected).square().sum()
    return (10 * torch.log10(expected.square().sum() / noise)).item()


# --- Batch norms ------------------------------------------------------------------------------


def with_odd_gammas() -> nn.Module:
    net = randomize(Residual())
    with torch.no_grad():
        for bn in (net.bn1, net.bn2, net.bn3):
            bn.weight.copy_(torch.tensor([0.0, 1e-8, -1.0, 1.0]))
    return net


@pytest.mark.parametrize("quantizing", [True, False])
def test_zero_tiny_and_negative_gammas_train_and_the_zero_leaves(quantizing):
    net = with_odd_gammas()
    plain = copy.deepcopy(net).train()
    model = prepared_residual(net)
    if not quantizing:
        model.apply(disable_fake_quant).apply(disable_observer)
        torch.testing.assert_close(model(IMAGE), plain(IMAGE), rtol=1e-5, atol=1e-5)
    assert all(g.isfinite().all() for g in gradients(model, IMAGE))
    assert model.up.bn.weight.grad[0] != 0
    train_steps(model, IMAGE)
    assert model.up.bn.weight[0] != 0
    assert all(p.isfinite().all() for p in model.parameters())


def test_zero_tiny_and_negative_gammas_convert_exactly():
    model = trained_residual(with_odd_gammas())
    assert torch.equal(convert(model)(IMAGE), model(IMAGE))


def test_a_bias_before_a_live_batch_norm_is_kept_and_its_gradient_is_nearly_zero():
    model = prepared_residual()
    model.apply(disable_fake_quant)
    gradients(model, IMAGE)
    bias, weight = model.conv1.bias.grad, model.conv1.weight.grad
    assert bias is not None
    assert bias.abs().max() < 1e-4 * weight.abs().max()
    model.train(False)
    model(IMAGE)
    with torch.no_grad():
        before = model(IMAGE)
        model.conv1.bias += 0.5
        assert not torch.equal(model(IMAGE), before)
    assert all(g.isfinite().all() for g in gradients(model, IMAGE))


def test_statistics_estimated_anew_after_training_convert_exactly():
    model = prepared_residual()
    train_steps(model, IMAGE)
    model.train()
    bns = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    for bn in bns:
        bn.reset_running_stats()
        bn.momentum = None
    with torch.no_grad():
        for scale in (1.0, 2.0, 3.0):
            model(scale * IMAGE)
    assert [int(bn.num_batches_tracked) for bn in bns] == [3, 3, 3]
    model.eval()
    assert torch.equal(convert(model)(IMAGE), model(IMAGE))


@pytest.mark.parametrize("alone", [False, True])
def test_a_batch_norm_without_statistics_trains_evaluates_and_is_refused_by_convert(alone):
    bn = nn.BatchNorm2d(3, track_running_stats=False)
    net = nn.Sequential(QuantStub(), nn.Conv2d(3, 3, 1), bn, DeQuantStub())
    if not alone:
        fuse_modules(net, [1, 2], inplace=True)
    plain = copy.deepcopy(net).eval()
    model = prepare(net)
    y = model(IMAGE)
    y.sum().backward()
    step = y.abs().max().item() / 127
    y = model.eval()(IMAGE)
    assert (y - plain(IMAGE)).abs().max() < 6 * step
    text = f"convert: {2 if alone else 1}: .*batch norm has no running statistics"
    with pytest.raises(ValueError, match=text):
        convert(model)


def test_one_value_per_channel_is_refused_in_training_as_by_batch_norm_and_works_in_eval():
    net = nn.Sequential(
        QuantStub(), nn.AdaptiveAvgPool2d(1), nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), DeQuantStub()
    )
    fuse_modules(net, [2, 3], inplace=True)
    net.qconfig = get_default_qat_qconfig()
    model = prepare_qat(net.eval(), inplace=True)
    assert not model.training
    assert model(IMAGE[:1]).shape == (1, 4, 1, 1)
    with pytest.raises(ValueError, match=r"2: Expected more than 1 value per channel when train"):
        model.train()(IMAGE[:1])


def test_a_depthwise_net_is_close_to_float_before_any_step():
    net = randomize(NETWORKS["mobilenet_v2"]()).train()
    net.classifier[0].p = 0.0
    for bn in net.modules():
        if isinstance(bn, nn.BatchNorm2d):
            bn.momentum = 0.5  # settled after ten passes
    plain = copy.deepcopy(net)
    fuse_modules(net, net.groups(), inplace=True)
    model = prepare(net)
    x = torch.randn(4, 3, 24, 24)
    with torch.no_grad():
        for _ in range(10):
            y, expected = model(x), plain(x)
        assert signal_to_noise(y, expected) > 20  # dB
        assert signal_to_noise(model.eval()(x), plain.eval()(x)) > 20
    depthwise = convert(model).features[2].conv[3]
    assert depthwise.groups == depthwise.weight_scale.numel() == 48


# --- Quantizers -------------------------------------------------------------------------------


def test_infinities_saturate_and_nan_stays():
    x = torch.tensor([1.0, torch.inf, torch.nan, -torch.inf, 26.0])
    y = ops.fake_quantize_per_tensor(x, 0.1, 0, -128, 127)
    # 1 / 0.1 = 10 codes; 127 * 0.1; -128 * 0.1; 260 codes saturate.
    expected = torch.tensor([10, 127, torch.nan, -128, 127]) * torch.tensor(0.1)
    torch.testing.assert_close(y, expected, rtol=0, atol=0, equal_nan=True)


def test_half_precision_is_divided_by_a_small_scale_in_fp32():
    x = torch.tensor([6e4, -6e4, 1e-6, 5e-6, 0.0], dtype=torch.float16)
    y = ops.fake_quantize_per_tensor(x, 1e-6, 0, -128, 127)
    codes = torch.tensor([127, -128, 1, 5, 0])  # 6e4 / 1e-6 = 6e10 saturates
    assert torch.equal(y, (codes * torch.tensor(1e-6)).half())


def test_symmetric_weights_never_use_minus_128():
    model = prepare(nn.Sequential(QuantStub(), nn.Conv2d(1, 2, 2), DeQuantStub()))
    with torch.no_grad():
        model[1].weight.copy_(torch.linspace(-1, 1, 8).view(2, 1, 2, 2))
        model(torch.randn(1, 1, 4, 4))
        model[1].weight.mul_(1.5)  # a scale that lags behind would clip at -128
    codes = convert(model.eval())[1].weight.flatten()
    # Channel 0 is -1, -5/7, -3/7, -1/7 of the largest, 127; channel 1 mirrors it.
    assert codes.tolist() == [-127, -91, -54, -18, 18, 54, 91, 127]


@pytest.mark.parametrize("groups", [1, 2])
def test_a_loud_channel_of_a_transposed_convolution_costs_the_others_nothing(groups):
    layer = nn.ConvTranspose2d(4, 6, 3, groups=groups)
    with torch.no_grad():
        layer.weight[:2, 1] *= 100  # output channel 1, of the first group
    weight = layer.weight.detach().double().clone()
    model = prepare(nn.Sequential(QuantStub(), layer, DeQuantStub()))
    model(torch.randn(2, 4, 5, 5))
    int8 = convert(model.eval())[1]
    shape = (groups, 4 // groups, 6 // groups, 3, 3)
    scale = int8.weight_scale.double().view(groups, 1, 6 // groups, 1, 1)
    error = int8.weight.double().view(shape) - weight.view(shape) / scale
    assert error.abs().max() <= 0.5001
    assert (int8.weight_scale > 10 * int8.weight_scale.median()).tolist() == [0, 1, 0, 0, 0, 0]


@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
def test_the_border_is_as_good_as_the_inside(mode):
    conv = nn.Conv2d(3, 4, 3, padding=1, padding_mode=mode)
    net = nn.Sequential(QuantStub(scale=0.02, zero_point=100), conv, DeQuantStub())
    x = 5 * torch.rand(8, 3, 12, 12) - 2  # codes 0 to 250 around the zero point
    expected = conv(x).detach()
    conv.qconfig = get_default_qat_out_qconfig(backend="x86")
    model = prepare(net, "x86").eval()
    error = (convert(model)(x) - expected).abs()
    inside = error[:, :, 1:-1, 1:-1].clone()
    error[:, :, 1:-1, 1:-1] = 0
    assert 0 < error.max() < 1.2 * inside.max()


def test_a_bias_on_a_dead_weight_channel_is_exact():
    net = nn.Sequential(QuantStub(scale=0.5), nn.Conv2d(3, 2, 1), DeQuantStub())
    with torch.no_grad():
        net[1].weight[0] = 0
        net[1].bias[0] = 5
    net[1].qconfig = get_default_qat_out_qconfig()
    y = convert(prepare(net).eval())(IMAGE)
    assert y[:, 0].unique().tolist() == [5.0]
    assert y[:, 1].unique().numel() > 3


def test_a_batch_with_nan_between_good_ones_leaves_ranges_that_still_move():
    model = prepare(nn.Sequential(QuantStub(), nn.Conv2d(3, 4, 1), DeQuantStub()))
    model(IMAGE)
    bad = IMAGE.clone()
    bad[0, 0, 0, 0] = torch.nan
    with pytest.raises(ValueError, match="0: observe: 'x' must be finite"):
        model(bad)
    model(2 * IMAGE)
    peak = IMAGE.max().item()
    quantizer = model[0].activation_post_process
    assert quantizer.observed == 2
    assert quantizer.max_val.item() == pytest.approx(peak + 0.01 * peak, rel=1e-6)


# --- Adds -------------------------------------------------------------------------------------


def test_a_residual_group_has_one_output_quantizer_and_its_operands_have_theirs():
    model = trained_residual()
    points = [n for n, m in model.named_modules() if isinstance(m, FakeQuantize)]
    layers = ["quant", "conv1", "add", "up"]
    assert sorted(points) == sorted(f"{name}.activation_post_process" for name in layers)
    int8 = convert(model)
    for name in layers:
        scale = model.get_submodule(name).activation_post_process.scale
        assert torch.equal(int8.get_submodule(name).scale, scale)
    y = int8(IMAGE)
    assert int8.add._inputs["skip"][4] == "conv1"
    assert torch.equal(int8.add._inputs["skip"][1], model.conv1.activation_post_process.scale)
    assert torch.equal(y, model(IMAGE))


class TwoAdds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.small, self.large, self.dequant = QuantStub(), QuantStub(), DeQuantStub()
        self.a, self.b = FloatFunctional(), FloatFunctional()

    def forward(self, x: Tensor) -> Tensor:
        s, t = self.small(x), self.large(100 * x)
        return self.dequant(self.a.add(s, s)) + self.dequant(self.b.add(t, t))


def test_every_functional_has_a_range_of_its_own():
    model = prepare(TwoAdds())
    model(torch.linspace(0, 1, 100))
    assert model.a.activation_post_process.max_val.item() == pytest.approx(2, rel=0.01)
    assert model.b.activation_post_process.max_val.item() == pytest.approx(200, rel=0.01)


class AddInForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.quant, self.conv, self.dequant = QuantStub(), nn.Conv2d(3, 3, 1), DeQuantStub()

    def forward(self, x: Tensor) -> Tensor:
        x = self.quant(x)
        return self.dequant(self.conv(FloatFunctional().add(x, x)))


def test_a_functional_made_in_forward_is_refused_with_where_it_belongs():
    model = prepare(AddInForward())
    model(IMAGE)
    text = "conv: 'input' comes from 'add', .* in a FloatFunctional that is an attribute of the mo"
    with pytest.raises(ValueError, match=text):
        convert(model.eval())


# --- Dtypes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("when", ["before prepare", "after prepare"])
def test_models_of_other_dtypes_train_and_convert_to_the_same_codes(dtype, when):
    if when == "before prepare":
        model = prepared_residual(randomize(Residual()).to(dtype))
    else:
        model = prepared_residual().to(dtype)
    x = IMAGE.to(dtype)
    y = model(x)
    assert y.dtype == dtype
    y.float().square().mean().backward()
    assert all(p.grad.dtype == dtype and p.grad.isfinite().all() for p in model.parameters())
    assert model.conv1.activation_post_process.scale.dtype == torch.float32
    y = model.eval()(x)
    z = convert(model)(x)
    assert z.dtype == dtype
    assert torch.equal(z, y)


def test_autocast_changes_neither_the_state_nor_the_result_much():
    model = prepared_residual()
    other = copy.deepcopy(model)
    loss = model(IMAGE).square().mean()
    with torch.autocast("cpu", torch.bfloat16):
        y = other(IMAGE)
        mixed = y.square().mean()
    mixed.backward()
    assert y.dtype == torch.bfloat16  # as that of a float convolution
    assert mixed.item() == pytest.approx(loss.item(), rel=0.01)
    state = other.state_dict()
    floating = {k: v.dtype for k, v in state.items() if v.is_floating_point()}
    assert set(floating.values()) == {torch.float32}
    assert all(p.grad.isfinite().all() for p in other.parameters())
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(convert(other.eval())(IMAGE), other(IMAGE))
