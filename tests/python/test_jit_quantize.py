"""A calibrated float network becomes an int8 one, which agrees with the eager route."""

from __future__ import annotations

import pytest
import torch
from jit_networks import SCRIPTS, example, load, scripted, traced
from networks import NETWORKS, randomize
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from horizon_plugin import jit
from horizon_plugin.quantization import (
    DeQuantStub,
    FakeQuantState,
    FloatFunctional,
    QuantStub,
    convert,
    fuse_modules,
    get_default_calib_qconfig,
    get_default_qat_qconfig,
    prepare_qat,
    set_fake_quantize,
)

ANCHORS = ("conv1d", "conv2d", "conv_transpose2d")


class Block(nn.Module):
    """Each kind of group that has an integer operator, once."""

    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant = QuantStub(), DeQuantStub()
        self.conv1, self.relu1 = nn.Conv2d(3, 8, 3, padding=1), nn.ReLU()
        self.pool = nn.MaxPool2d(2)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1, groups=4, bias=False)
        self.add, self.relu2 = FloatFunctional(), nn.ReLU6()
        self.up = nn.ConvTranspose2d(8, 4, 3, stride=2, output_padding=1)
        self.mul = FloatFunctional()
        self.fc = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.relu1(self.conv1(self.quant(x))))
        x = self.relu2(self.add.add(self.conv2(x), x))
        y = self.up(x)
        y = self.mul.mul(y, y).flatten(2).transpose(1, 2)
        return self.dequant(self.fc(y))


class Plain(Block):
    """The same in float, without stubs."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.relu1(self.conv1(x)))
        x = self.relu2(self.conv2(x) + x)
        y = self.up(x)
        y = (y * y).flatten(2).transpose(1, 2)
        return self.fc(y)


def eager(inputs: list[Tensor]) -> nn.Module:
    torch.manual_seed(0)
    model = Block().eval()
    fuse_modules(model, [["conv1", "relu1"]], inplace=True)
    model.qconfig = get_default_calib_qconfig()
    prepare_qat(model, inplace=True)
    set_fake_quantize(model, FakeQuantState.CALIBRATION)
    with torch.no_grad():
        for x in inputs:
            model(x)
    set_fake_quantize(model, FakeQuantState.VALIDATION)
    return convert(model.eval())


def partitioned(x: Tensor, **options) -> torch.jit.ScriptModule:
    torch.manual_seed(0)
    return jit.partition(
        traced(Plain().eval(), x), skip_dense_layer=False, anchors=ANCHORS, **options
    )


INPUTS = [torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(i)) for i in range(3)]


def kinds(module: torch.jit.ScriptModule) -> list[str]:
    return [n.kind() for n in module.graph.nodes() if n.kind().startswith("horizon::quantized")]


def test_every_group_becomes_an_integer_operator():
    made = partitioned(INPUTS[0])
    int8 = jit.quantize(made, INPUTS)
    assert kinds(int8) == [
        "horizon::quantized_conv",
        "horizon::quantized_max_pool2d",
        "horizon::quantized_conv",
        "horizon::quantized_add",
        "horizon::quantized_conv",
        "horizon::quantized_mul",
        "horizon::quantized_conv",
    ]
    assert not any(k in jit.dump(int8) for k in ("annotation", " conv2d(", " dense(", " relu("))


def test_the_result_is_that_of_the_eager_route_as_the_scales_are_equal():
    int8, reference = jit.quantize(partitioned(INPUTS[0]), INPUTS), eager(INPUTS)
    for x in INPUTS:
        assert torch.equal(int8(x), reference(x))


@pytest.mark.parametrize("raw", [False, True], ids=["outputs closed", "outputs raw"])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_the_int8_network_is_close_to_the_float_one(dtype, raw):
    made = partitioned(INPUTS[0], dtype_input=dtype, annotate_outputs=not raw)
    int8 = jit.quantize(made, INPUTS)
    x = INPUTS[0]
    expected = made(x)
    noise = (int8(x) - expected).square().mean() / expected.square().mean()
    assert noise < 10 ** (-30 / 10)  # 30 dB below the signal
    assert int8(x).dtype == torch.float32


# One branch of the scripted control flow never runs, and so has no range.
REACHED = [script for script in SCRIPTS if script != ("control flow", "script")]


@pytest.mark.parametrize(("name", "how"), REACHED, ids=lambda v: v)
def test_whole_networks_run_in_int8_and_from_a_file(name, how, tmp_path):
    made, x = jit.partition(load(name, how)), example(name)
    int8 = jit.quantize(made, [x])
    with torch.no_grad():
        expected, results = tree_leaves(made(x.clone())), tree_leaves(int8(x.clone()))
        jit.save(int8, tmp_path / "int8.pt")
        again = tree_leaves(jit.load(tmp_path / "int8.pt")(x.clone()))
    assert all(map(torch.equal, results, again))
    assert [(r.shape, r.dtype) for r in results] == [(e.shape, e.dtype) for e in expected]
    if name in ("resnet18", "mobilenet_v2", "unet"):
        assert "horizon::quantized_conv" in kinds(int8)
        for result, wanted in zip(results, expected, strict=True):
            noise = (result - wanted).square().mean() / wanted.square().mean()
            assert noise < 10 ** (-10 / 10)


def test_a_branch_that_calibration_misses_is_named():
    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)

        def forward(self, x: Tensor) -> Tensor:
            if bool(x.sum() > 0):
                return self.a(x)
            return self.b(x)

    made = jit.partition(scripted(Branch().eval()))
    with pytest.raises(ValueError, match="must reach every pair, got none that computes %"):
        jit.quantize(made, [torch.ones(1, 3, 2, 2)])
    both = jit.quantize(made, [torch.ones(1, 3, 2, 2), -torch.ones(1, 3, 2, 2)])
    for sign in (1, -1):
        x = torch.full((1, 3, 2, 2), float(sign))
        torch.testing.assert_close(both(x), made(x), rtol=0.05, atol=0.02)


@pytest.mark.parametrize(
    ("make", "inputs", "error", "text"),
    [
        (lambda: nn.ReLU(), INPUTS, TypeError, "'partitioned' must be a partitioned ScriptModule"),
        (lambda: traced(nn.ReLU(), INPUTS[0]), INPUTS, ValueError, "must be partitioned"),
        (
            lambda: partitioned(INPUTS[0], dtype_input="int16"),
            INPUTS,
            ValueError,
            "must have pairs of int8 or uint8, got int16",
        ),
        (lambda: partitioned(INPUTS[0]), [], ValueError, "must reach every pair"),
        (lambda: partitioned(INPUTS[0]), INPUTS[0], TypeError, "must be a list of inputs"),
    ],
)
def test_what_cannot_be_quantized_is_refused(make, inputs, error, text):
    with pytest.raises(error, match=text):
        jit.quantize(make(), inputs)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_prepared_model_becomes_exactly_what_it_computes_in_eval_mode(name):
    torch.manual_seed(0)
    net = randomize(NETWORKS[name]())
    fuse_modules(net, net.groups(), inplace=True)
    net.qconfig = get_default_qat_qconfig()
    prepare_qat(net, inplace=True)
    x = example(name)
    net(x)
    net.eval()
    made = jit.partition(traced(net, x), skip_dense_layer=False, anchors=ANCHORS)
    fused = jit.dump(made).count("horizon.fused")
    int8 = jit.quantize(made, [])
    with torch.no_grad():
        assert all(map(torch.equal, tree_leaves(int8(x)), tree_leaves(net(x))))
        assert all(map(torch.equal, tree_leaves(int8(x)), tree_leaves(convert(net)(x))))
    assert "horizon.fused" not in jit.dump(int8)
    assert kinds(int8).count("horizon::quantized_conv") >= fused > 0
