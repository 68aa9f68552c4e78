"""Single layers as ONNX: within one code of what the converted model computes."""

from __future__ import annotations

import onnx
import pytest
import torch
import torch.nn.functional as F
from onnx_run import LEVELS, operators, run, steps_apart
from stages import prepared
from torch import Tensor, nn

from horizon_plugin.export import to_onnx
from horizon_plugin.quantization import (
    DeQuantStub,
    FloatFunctional,
    QuantStub,
    convert,
    get_default_qat_qconfig,
    prepare_qat,
)


class Function(nn.Module):
    """A function between two convolutions."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Arithmetic(nn.Module):
    """One method of a FloatFunctional on the image, turned around twice, or on its halves."""

    def __init__(self, method: str, *numbers: float) -> None:
        super().__init__()
        self.functional = FloatFunctional()
        self.method, self.numbers = method, numbers

    def forward(self, x: Tensor) -> Tensor:
        call = getattr(self.functional, self.method)
        if self.numbers:
            return call(x, *self.numbers)
        if self.method == "cat":
            return call([x, x.permute(0, 1, 3, 2).permute(0, 1, 3, 2)], 1)
        if self.method == "mean":
            return call(x, [2, 3], True)
        if self.method == "matmul":
            return call(x, x.transpose(2, 3))
        return call(x[:, :2], x[:, 2:])  # different values, as x - x is 0 on any grid


def function(call):
    return lambda: Function(call)


LAYERS = {
    "max pool": lambda: nn.MaxPool2d(3, 2, 1),
    "max pool, ceil": lambda: nn.MaxPool2d(2, 2, ceil_mode=True),
    "max pool, dilated": lambda: nn.MaxPool2d(2, 1, dilation=2),
    "average pool": lambda: nn.AvgPool2d(3, 2, 1),
    "average pool, padding not counted": lambda: nn.AvgPool2d(3, 2, 1, count_include_pad=False),
    "average pool, ceil": lambda: nn.AvgPool2d(2, 2, ceil_mode=True, count_include_pad=False),
    "average pool, divisor": lambda: nn.AvgPool2d(2, divisor_override=3),
    "adaptive pool to 1": lambda: nn.AdaptiveAvgPool2d(1),
    "adaptive pool, dividing": lambda: nn.AdaptiveAvgPool2d((3, 1)),
    "adaptive pool, overlapping": lambda: nn.AdaptiveAvgPool2d((4, 3)),
    "relu": nn.ReLU,
    "relu in place": lambda: nn.ReLU(inplace=True),
    "relu6": nn.ReLU6,
    "batch norm": lambda: nn.BatchNorm2d(4),
    "hardswish": nn.Hardswish,
    "hardsigmoid": nn.Hardsigmoid,
    "sigmoid": nn.Sigmoid,
    "leaky relu": lambda: nn.LeakyReLU(0.2),
    "elu": lambda: nn.ELU(0.7),
    "hardtanh": lambda: nn.Hardtanh(-0.5, 0.7),
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "softplus": nn.Softplus,
    "prelu": nn.PReLU,
    "prelu, a slope for each channel": lambda: nn.PReLU(4),
    "nearest": lambda: nn.Upsample(scale_factor=2),
    "nearest, uneven": lambda: nn.Upsample(size=(10, 13)),
    "bilinear": lambda: nn.Upsample(scale_factor=2, mode="bilinear"),
    "bilinear, corners": lambda: nn.Upsample(size=(9, 7), mode="bilinear", align_corners=True),
    "pixel shuffle": lambda: nn.PixelShuffle(2),
    "zero padding": lambda: nn.ZeroPad2d((1, 2, 0, 1)),
    "add": lambda: Arithmetic("add"),
    "sub": lambda: Arithmetic("sub"),
    "mul": lambda: Arithmetic("mul"),
    "cat": lambda: Arithmetic("cat"),
    "mean": lambda: Arithmetic("mean"),
    "matmul": lambda: Arithmetic("matmul"),
    "add scalar": lambda: Arithmetic("add_scalar", 0.3),
    "mul scalar": lambda: Arithmetic("mul_scalar", -1.5),
    "flatten": nn.Flatten,
    "permute": function(lambda x: x.permute(0, 2, 3, 1).reshape(x.shape[0], -1, 4)),
    "chunk": function(lambda x: torch.chunk(x, 2, 1)[1]),
    "slice": function(lambda x: x[:, 1:3, ::2]),
    "select": function(lambda x: x[:, 1]),
    "max pool function": function(lambda x: F.max_pool2d(x, 2)),
}
# Those in which a zero point that is not 128 could go wrong.
WITH_ZERO_POINT = ("max pool", "average pool", "relu", "relu6", "zero padding", "cat", "hardswish")
CASES = [(name, "horizon") for name in LAYERS] + [(name, "x86") for name in WITH_ZERO_POINT]


def around(layer: nn.Module) -> nn.Module:
    return nn.Sequential(QuantStub(), nn.Conv2d(3, 4, 3, padding=1), layer, DeQuantStub()).train()


@pytest.mark.parametrize(("name", "backend"), CASES)
def test_a_layer_is_within_one_code(name, backend, tmp_path):
    x = torch.randn(2, 3, 6, 5)
    model = prepared(around(LAYERS[name]()), x, backend, steps=1)
    to_onnx(model, x, tmp_path / "net.onnx")
    x = torch.randn(3, 3, 6, 5)
    with torch.no_grad():
        expected = convert(model)(x)
    for level in LEVELS:
        (result,) = run(tmp_path / "net.onnx", x, level=level)
        assert result.shape == expected.shape
        assert steps_apart(result, expected).max() < 1.01


def test_functions_that_onnx_knows_are_operators_and_others_are_tables(tmp_path):
    x = torch.randn(2, 3, 6, 5)
    for layer, kind in ((nn.Sigmoid(), "Sigmoid"), (nn.SELU(), "Gather")):
        to_onnx(prepared(around(layer), x, steps=1), x, tmp_path / "net.onnx")
        assert operators(tmp_path / "net.onnx")[kind] == 1


class Island(nn.Module):
    """Float arithmetic of many kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1, groups=2), nn.BatchNorm2d(4)
        self.layer_norm, self.linear = nn.LayerNorm(5), nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x)).clamp(-2, 2)
        y = self.linear(self.layer_norm(y)) * torch.softmax(y, 1) - 0.5 * x.mean((2, 3), True)
        y = torch.where(y > 0, y, y.abs().sqrt() / 2)
        return F.gelu(y) + F.silu(y) + F.gelu(y, approximate="tanh") + y.amax(1, keepdim=True)


def test_float_islands_are_float_operators(tmp_path):
    net = nn.Sequential(
        QuantStub(), nn.Conv2d(3, 4, 1), Island(), nn.Conv2d(4, 4, 1), DeQuantStub()
    ).train()
    net.qconfig = get_default_qat_qconfig()
    net[2].qconfig = None
    model = prepare_qat(net, inplace=True)
    x = torch.randn(2, 3, 6, 5)
    model(x)
    model.eval()
    to_onnx(model, x, tmp_path / "net.onnx")
    x = torch.randn(3, 3, 6, 5)
    with torch.no_grad():
        expected = convert(model)(x)
    for level in LEVELS:
        (result,) = run(tmp_path / "net.onnx", x, level=level)
        assert steps_apart(result, expected).max() < 1.01


class Nested(nn.Module):
    """Two inputs, a dictionary of results, one of them twice and one an input."""

    def __init__(self) -> None:
        super().__init__()
        self.quant, self.quant2, self.dequant = QuantStub(), QuantStub(), DeQuantStub()
        self.a, self.b = nn.Linear(6, 5), nn.Linear(6, 5)
        self.add = FloatFunctional()

    def forward(self, x: Tensor, y: Tensor) -> dict[str, object]:
        z = self.dequant(self.add.add(self.a(self.quant(x)), self.b(self.quant2(y))))
        return {"z": z, "again": [z, x]}


def test_several_inputs_and_nested_results_come_in_order(tmp_path):
    net = Nested().train()
    net.qconfig = get_default_qat_qconfig()
    model = prepare_qat(net, inplace=True)
    x, y = torch.randn(2, 3, 6), torch.randn(2, 3, 6)
    model(x, y)
    model.eval()
    to_onnx(model, (x, y), tmp_path / "net.onnx")
    inputs = onnx.load(tmp_path / "net.onnx").graph.input
    assert [i.name for i in inputs] == ["x", "y"]
    results = run(tmp_path / "net.onnx", x, y)
    with torch.no_grad():
        expected = convert(model)(x, y)
    assert steps_apart(results[0], expected["z"]).max() < 1.01
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[2], x)


@pytest.mark.parametrize("batch", [1, 2])
def test_the_batch_is_dynamic_unless_told_otherwise(batch, tmp_path):
    x = torch.randn(batch, 3, 6, 5)
    model = prepared(around(nn.ReLU()), torch.randn(2, 3, 6, 5), steps=1)
    int8 = convert(model)
    to_onnx(int8, x, tmp_path / "net.onnx")
    for size in (1, 4):
        images = torch.randn(size, 3, 6, 5)
        assert run(tmp_path / "net.onnx", images)[0].shape == int8(images).shape
    to_onnx(int8, x, tmp_path / "net.onnx", dynamic_batch=False)
    shape = onnx.load(tmp_path / "net.onnx").graph.input[0].type.tensor_type.shape
    assert [size.dim_value for size in shape.dim] == [batch, 3, 6, 5]


@pytest.mark.parametrize("stage", [lambda m: m, convert], ids=["prepared", "converted"])
def test_exporting_leaves_the_model_as_it_was(stage, tmp_path):
    x = torch.randn(2, 3, 6, 5)
    model = stage(prepared(around(nn.ReLU()), x, steps=1))
    state = {key: value.clone() for key, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    with torch.no_grad():
        before = model(x)
        to_onnx(model, x, tmp_path / "net.onnx")
        assert torch.equal(model(x), before)
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes
