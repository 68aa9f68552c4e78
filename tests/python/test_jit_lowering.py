"""What becomes of single operators, lines and fake-quantized graphs when a network is lowered."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from jit_networks import scripted, traced
from torch import Tensor, nn

from horizon_plugin import jit
from horizon_plugin.quantization import (
    DeQuantStub,
    FakeQuantState,
    FloatFunctional,
    QuantStub,
    convert,
    fuse_modules,
    get_default_calib_qconfig,
    prepare_qat,
    set_fake_quantize,
)

both_ways = pytest.mark.parametrize("how", [traced, lambda net, x: scripted(net)], ids=["t", "s"])


def inputs(*shape: int, count: int = 3) -> list[Tensor]:
    return [torch.randn(shape, generator=torch.Generator().manual_seed(i)) for i in range(count)]


def kinds(module: torch.jit.ScriptModule) -> list[str]:
    names = (n.kind().removeprefix("horizon::") for n in module.graph.nodes())
    return [name for name in names if name.startswith("quantized")]


def lowered(script: torch.jit.ScriptModule, xs: list[Tensor], **options) -> torch.jit.ScriptModule:
    options = {"skip_dense_layer": False, "anchors": ("conv1d", "conv2d"), **options}
    return jit.quantize(jit.partition(script, **options), xs)


class Head(nn.Module):
    """Everything between groups that has an integer operator, once."""

    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant = QuantStub(), DeQuantStub()
        self.conv1, self.relu1 = nn.Conv2d(3, 8, 3, padding=1), nn.ReLU()
        self.pool = nn.AvgPool2d(2)
        self.conv2, self.conv3 = nn.Conv2d(8, 6, 3, padding=1), nn.Conv2d(8, 2, 1)
        self.cat, self.mean = FloatFunctional(), FloatFunctional()
        self.conv4, self.gap = nn.Conv2d(8, 4, 1), nn.AdaptiveAvgPool2d(1)
        self.drop, self.fc1, self.fc2 = nn.Dropout(), nn.Linear(4, 5), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.pool(self.relu1(self.conv1(self.quant(x))))
        x = self.conv4(self.cat.cat([self.conv2(x), self.conv3(x)], 1))
        a = self.fc1(self.drop(self.gap(x).flatten(1)))
        b = self.fc2(self.mean.mean(x, (2, 3)))
        return self.dequant(a), self.dequant(b)


class PlainHead(Head):
    """The same in float, without stubs."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.pool(self.relu1(self.conv1(x)))
        x = self.conv4(torch.cat([self.conv2(x), self.conv3(x)], 1))
        y = self.gap(x)
        a = self.fc1(self.drop(y.view(y.size(0), -1)))
        return a, self.fc2(x.mean((2, 3)))


@both_ways
def test_pools_means_and_cats_between_groups_run_on_codes_as_in_the_eager_route(how):
    xs = inputs(2, 3, 8, 8)
    torch.manual_seed(0)
    model = Head().eval()
    fuse_modules(model, [["conv1", "relu1"]], inplace=True)
    model.qconfig = get_default_calib_qconfig()
    prepare_qat(model, inplace=True)
    set_fake_quantize(model, FakeQuantState.CALIBRATION)
    with torch.no_grad():
        for x in xs:
            model(x)
    set_fake_quantize(model, FakeQuantState.VALIDATION)
    reference = convert(model.eval())
    torch.manual_seed(0)
    int8 = lowered(how(PlainHead().eval(), xs[0]), xs)
    found = kinds(int8)
    assert found.count("quantized_conv") == 6
    for name in ("avg_pool2d", "cat", "mean"):
        assert found.count(f"quantized_{name}") == 1
    # A scripted adaptive pooling is a branch on its input's rank, whose result is no single op's.
    if how is traced:
        assert found.count("quantized_adaptive_avg_pool2d") == 1
        assert jit.dump(int8).count("horizon.dequantize(") == 2
    for x in xs:
        for result, expected in zip(int8(x), reference(x), strict=True):
            assert torch.equal(result, expected)


class Line(nn.Module):
    """Convolutions over a line, with each of their arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv1d(3, 8, 5, stride=2, padding=2)
        self.b = nn.Conv1d(8, 8, 3, padding=2, dilation=2, groups=4)
        self.same = nn.Conv1d(8, 8, 4, padding="same")

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool1d(F.relu(self.a(x)), 3, stride=2, padding=1)
        return self.same(F.max_pool1d(self.b(x), 2, stride=1))


class Strip(nn.Module):
    """The same over an image of one row."""

    def __init__(self, line: Line) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 8, (1, 5), stride=(1, 2), padding=(0, 2))
        self.b = nn.Conv2d(8, 8, (1, 3), padding=(0, 2), dilation=(1, 2), groups=4)
        self.same = nn.Conv2d(8, 8, (1, 4), padding="same")
        for name, value in line.state_dict().items():
            value = value.unsqueeze(2) if name.endswith("weight") else value
            self.get_parameter(name).data.copy_(value)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.a(x)), (1, 3), stride=(1, 2), padding=(0, 1))
        return self.same(F.max_pool2d(self.b(x), (1, 2), stride=1))


@both_ways
@pytest.mark.parametrize("raw", [False, True], ids=["closed", "raw"])
@pytest.mark.parametrize("shape", [(2, 3, 41), (3, 41), (0, 3, 41)], ids=str)
@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_convolutions_over_a_line_are_those_over_an_image_of_one_row(how, raw, shape):
    torch.manual_seed(0)
    line = Line().eval()
    strip = Strip(line).eval()
    xs = inputs(2, 3, 41)
    x = torch.randn(shape)
    calls = [lowered(how(line, xs[0]), xs, annotate_outputs=not raw)]
    wide = [x.unsqueeze(2) for x in xs]
    calls.append(lowered(how(strip, wide[0]), wide, annotate_outputs=not raw))
    assert kinds(calls[0]) == kinds(calls[1])
    assert kinds(calls[0]).count("quantized_conv") == 3
    with torch.no_grad():
        assert torch.equal(calls[0](x), calls[1](x.unsqueeze(-2)).squeeze(-2))


class FakeQuantized(nn.Module):
    """Quantizers of PyTorch's own: per tensor and per channel, ranges that are not 127."""

    def __init__(self, low: int = -128, high: int = 127) -> None:
        super().__init__()
        self.low, self.high = low, high
        self.zero = (low + high) // 2 + 5
        self.conv, self.up = nn.Conv2d(3, 8, 3, padding=1), nn.ConvTranspose2d(8, 4, 2, groups=2)
        self.fc = nn.Linear(4, 6)
        self.register_buffer("zeros", torch.zeros(8, dtype=torch.int32))
        # abs-max / 127.5, as PyTorch has it: codes reach -128.
        self.register_buffer("s0", self.conv.weight.detach().abs().amax((1, 2, 3)) / 127.5)
        self.register_buffer("s1", torch.full((8,), 0.004))

    def fake(self, x: Tensor, scale: float) -> Tensor:
        return torch.fake_quantize_per_tensor_affine(x, scale, self.zero, self.low, self.high)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fake(x, 0.03)
        weight = torch.fake_quantize_per_channel_affine(
            self.conv.weight, self.s0, self.zeros, 0, -128, 127
        )
        x = F.relu(F.conv2d(x, weight, self.conv.bias, padding=1))
        x = F.max_pool2d(self.fake(x, 0.01), 2)
        weight = torch.fake_quantize_per_tensor_affine(self.up.weight, 0.004, 0, -128, 127)
        x = self.fake(F.conv_transpose2d(x, weight, self.up.bias, groups=2), 0.006)
        x = self.fake(F.adaptive_avg_pool2d(x, [1, 1]), 0.003).flatten(1)
        weight = torch.fake_quantize_per_tensor_affine(self.fc.weight, 0.005, 0, -128, 127)
        return self.fake(F.linear(x, weight, self.fc.bias), 0.004)


@both_ways
@pytest.mark.parametrize(("low", "high"), [(-128, 127), (0, 255), (-100, 100), (0, 127)])
def test_a_graph_of_fake_quantizers_keeps_their_grids_and_the_codes(how, low, high):
    torch.manual_seed(0)
    net = FakeQuantized(low, high).eval()
    x = torch.randn(4, 3, 9, 9)
    made = jit.partition(
        how(net, x), skip_dense_layer=False, anchors=("conv2d", "conv_transpose2d")
    )
    int8 = jit.quantize(made, [])  # every grid is known
    if high - low == 255:
        assert kinds(int8) == [
            "quantized_conv",
            "quantized_max_pool2d",
            "quantized_conv",
            "quantized_adaptive_avg_pool2d",
            "quantized_conv",
        ]
    with torch.no_grad():
        result, expected = int8(x), net(x)
        # A value next to a rounding boundary may fall on its other side, in float as in integers.
        codes = ((result - expected) / 0.004).abs()
        assert codes.max() < 1.01 and (codes > 0.5).sum() <= 1
        assert result.unique().numel() > 4


def test_weights_on_a_grid_keep_it_and_others_have_their_abs_max():
    # Steps of 1/8 up to 3/8 are codes -3..3; abs-max / 127 would need 42.33 steps for 1/8.
    on_grid = torch.tensor([0.375, -0.125, 0.25, 0.0]).reshape(1, 4, 1, 1)
    off_grid = torch.tensor([0.375, -0.1251, 0.25, 0.01]).reshape(1, 4, 1, 1)
    # -128 and 127 steps: only a grid that reaches -128 holds both.
    wide = torch.tensor([-1.0, 127 / 128, 0.5, 0.0]).reshape(1, 4, 1, 1)
    conv = nn.Conv2d(4, 3, 1, bias=False).eval()
    conv.weight.data = torch.cat([on_grid, off_grid, wide])
    xs = inputs(1, 4, 3, 3)
    int8 = lowered(traced(conv, xs[0]), xs)
    node = next(n for n in int8.graph.nodes() if n.kind() == "horizon::quantized_conv")
    codes, scale = (list(node.inputs())[i].toIValue() for i in (3, 4))
    assert scale.tolist() == [0.125, torch.tensor(0.375) / 127, 2**-7]
    # -0.1251 / (0.375 / 127) = -42.37, 0.25 / … = 84.67, 0.01 / … = 3.39.
    assert codes.flatten(1).tolist() == [[3, -1, 2, 0], [127, -42, 85, 3], [-128, 127, 64, 0]]


def test_a_batch_norm_behind_a_linear_layer_counts_its_own_channels():
    class Points(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.bn = nn.Linear(4, 5), nn.BatchNorm1d(5)

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(self.bn(self.fc(x)))

    torch.manual_seed(0)
    net = Points().eval()
    net.bn.running_mean.copy_(torch.arange(5) * 0.2)
    net.bn.weight.data.copy_(torch.arange(5) * 0.5)
    # [batch, channels, features] and [batch, features]
    for shape in ((3, 5, 4), (7, 4)):
        xs = inputs(*shape)
        int8 = lowered(traced(net, xs[0]), xs)
        torch.testing.assert_close(int8(xs[0]), net(xs[0]), rtol=0, atol=0.03)


@both_ways
def test_views_between_groups_run_on_codes_where_the_grid_stays(how):
    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 8, 1), nn.Conv2d(2, 3, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = F.pixel_shuffle(self.a(x), 2)
            return self.b(x.permute(0, 1, 3, 2).reshape(x.size(0), 2, -1, 2))

    torch.manual_seed(0)
    net, xs = Views().eval(), inputs(2, 3, 4, 4)
    int8 = lowered(how(net, xs[0]), xs)
    assert jit.dump(int8).count("horizon.quantize(") == 1
    assert jit.dump(int8).count("horizon.dequantize(") == 1
    error = (int8(xs[0]) - net(xs[0])).norm() / net(xs[0]).norm()
    assert error < 0.03
