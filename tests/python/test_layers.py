"""Single layers, functionals and functional ops: exact from prepared to script."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from networks import randomize
from plain import X, prepared_in_eval, with_qconfig
from stages import prepared, script, trace
from torch import Tensor, nn

from horizon_plugin.quantization import (
    DeQuantStub,
    FakeQuantState,
    FloatFunctional,
    QuantStub,
    convert,
    get_default_qat_qconfig,
    prepare_qat,
    report,
    set_fake_quantize,
)

FUNCTIONALS = {
    "add": lambda ff, x, y: ff.add(x, y),
    "add_relu": lambda ff, x, y: ff.add_relu(x, y),
    "sub": lambda ff, x, y: ff.sub(x, y),
    "mul": lambda ff, x, y: ff.mul(x, y),
    "add_scalar": lambda ff, x, y: ff.add_scalar(x, 0.75),
    "mul_scalar": lambda ff, x, y: ff.mul_scalar(x, -1.5),
    "cat": lambda ff, x, y: ff.cat([x, y], 1),
    "mean": lambda ff, x, y: ff.mean(x, [2, 3], True),
    "matmul": lambda ff, x, y: ff.matmul(x, y.transpose(2, 3)),
}


@pytest.mark.parametrize("backend", ["horizon", "x86"])
@pytest.mark.parametrize("name", FUNCTIONALS)
def test_functionals_are_exact_from_prepared_to_script(name, backend):
    call = FUNCTIONALS[name]

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.quant_x, self.quant_y, self.dequant = QuantStub(), QuantStub(), DeQuantStub()
            self.ff = FloatFunctional()

        def forward(self, x: Tensor) -> Tensor:
            return self.dequant(call(self.ff, self.quant_x(x), self.quant_y(0.3 * x + 0.1)))

    net = with_qconfig(Net(), get_default_qat_qconfig(backend=backend)).train()
    reference = call(FloatFunctional(), X, 0.3 * X + 0.1)
    model = prepare_qat(net, inplace=True)
    model(X)
    y = model.eval()(X)
    scale = model.ff.activation_post_process.scale.item()
    assert (y - reference).abs().max() < 3 * scale + 0.05 * reference.abs().max()
    with torch.no_grad():
        int8 = convert(model)
        assert torch.equal(int8(X), y)
        assert torch.equal(trace(int8, X)(X), y)
    x = X.clone().requires_grad_()
    model(x).sum().backward()
    assert x.grad.abs().sum() > 0


SINGLE = {
    "avg_pool": nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False),
    "adaptive": nn.AdaptiveAvgPool2d((2, None)),
    "relu6": nn.ReLU6(),
    "hardtanh": nn.Hardtanh(0.0, 6.0),
    "batch_norm": nn.BatchNorm2d(3),
    "bilinear": nn.Upsample(scale_factor=2, mode="bilinear"),
    "nearest": nn.Upsample(scale_factor=2),
    "max_pool": nn.MaxPool2d(3, 2, 1),
    "adaptive_max": nn.AdaptiveMaxPool2d(2),
    "relu": nn.ReLU(),
    "relu_inplace": nn.ReLU(inplace=True),
    "pixel_shuffle": nn.Sequential(nn.Conv2d(3, 4, 1), nn.PixelShuffle(2)),
    "zero_pad": nn.ZeroPad2d(1),
    "reflection": nn.ReflectionPad2d(1),
    "dropout": nn.Dropout(0.5),
    "flatten": nn.Flatten(),
}


@pytest.mark.parametrize("backend", ["horizon", "x86"])
@pytest.mark.parametrize("name", SINGLE)
def test_single_layers_are_exact_and_close_to_float(name, backend):
    layer = randomize(copy.deepcopy(SINGLE[name]))
    x = 4 * X + 1
    net = nn.Sequential(QuantStub(), layer, DeQuantStub()).eval()
    expected = net(x).detach()
    model = prepare_qat(with_qconfig(net, get_default_qat_qconfig(backend=backend)), inplace=True)
    set_fake_quantize(model, FakeQuantState.CALIBRATION)
    model(x)
    set_fake_quantize(model, FakeQuantState.QAT)
    y = model(x)
    assert y.shape == expected.shape
    assert (y - expected).abs().max() < 0.03 * x.abs().max()
    with torch.no_grad():
        int8 = convert(model)
        assert torch.equal(int8(x), y)
        assert torch.equal(trace(int8, x)(x), y)
    given = x.clone().requires_grad_()
    model.train()(given).sum().backward()
    assert given.grad.isfinite().all()


def test_functional_ops_between_modules_keep_the_grid():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.quant, self.dequant = QuantStub(), DeQuantStub()
            self.conv, self.last = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            y = F.relu(self.conv(self.quant(x)))
            y = F.interpolate(F.max_pool2d(y, 2), scale_factor=2)
            a, b = y.chunk(2, 1)
            y = torch.cat([a, b], 1).permute(0, 1, 3, 2).contiguous()
            return self.dequant(self.last(F.pad(y, (1, 1, 1, 1))[:, :, 1:-1]))

    for backend in ("horizon", "x86"):
        model = prepared(Net(), X, backend)
        assert report(model).float_layers == []
        y = model(X)
        with torch.no_grad():
            int8 = convert(model)
            assert torch.equal(int8(X), y)
            assert torch.equal(trace(int8, X)(X), y)
            with pytest.raises(RuntimeError, match=r"a functional .(relu|pad). runs on quantized"):
                script(int8)


def test_changing_a_quantized_tensor_in_place_is_an_error():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.quant, self.conv, self.dequant = QuantStub(), nn.Conv2d(3, 4, 1), DeQuantStub()

        def forward(self, x: Tensor) -> Tensor:
            y = self.quant(x)
            y.data.mul_(2)
            z = y.view(-1)
            with torch.no_grad():
                z.mul_(1.5)
            return self.dequant(self.conv(y))

    model = prepare_qat(with_qconfig(Net().train()), inplace=True)
    with pytest.raises(RuntimeError, match=r"conv: 'input' \(the result of quant\) was changed in"):
        model(X)


def test_one_functional_at_two_places_warns():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.ff, self.out = (
                QuantStub(),
                QuantStub(),
                FloatFunctional(),
                DeQuantStub(),
            )

        def forward(self, x: Tensor) -> Tensor:
            a, b = self.a(x), self.b(2 * x)
            return self.out(self.ff.add(self.ff.add(a, b), a))

    model = prepare_qat(with_qconfig(Net().train()), inplace=True)
    with pytest.warns(UserWarning, match="ff: one FloatFunctional is used at several places"):
        model(X)


class SharedRelu(nn.Module):
    """Two convolutions behind one nn.ReLU, as many published networks are written."""

    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant = QuantStub(), DeQuantStub()
        self.conv1, self.conv2 = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1)
        self.relu, self.pool = nn.ReLU(inplace=True), nn.MaxPool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.relu(self.conv1(self.quant(x))))
        return self.dequant(self.pool(self.relu(self.conv2(x))))


def test_a_relu_and_a_pool_that_are_shared_script_where_zero_points_agree():
    with torch.no_grad():
        model = prepared_in_eval(SharedRelu(), "horizon")
        int8 = convert(model)
        assert torch.equal(int8(X), model(X))
        assert torch.equal(script(int8)(X), model(X))
        model = prepared_in_eval(SharedRelu(), "x86")
        int8 = convert(model)
        assert torch.equal(int8(X), model(X))
        with pytest.raises(RuntimeError, match="relu is called with results of conv1 and conv2"):
            script(int8)


def test_a_max_pool_scripts_before_the_first_forward_on_codes_and_on_floats():
    layers = (nn.MaxPool2d(2), nn.Conv2d(3, 4, 1), nn.AdaptiveMaxPool2d(2))
    net = nn.Sequential(nn.MaxPool2d(1), QuantStub(), *layers, DeQuantStub(), nn.MaxPool2d(1))
    model = prepared(net.train(), X)
    with torch.no_grad():
        assert torch.equal(script(convert(model))(X), model(X))
