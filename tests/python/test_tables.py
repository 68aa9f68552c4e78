"""Elementwise functions by table, and the op that looks codes up."""

from __future__ import annotations

import copy
import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from plain import X
from stages import assert_all_equal, later_stages, prepared, silent_jit, trace
from torch import Tensor, nn

from horizon_plugin.quantization import (
    DeQuantStub,
    FloatFunctional,
    QuantStub,
    convert,
    get_default_qat_qconfig,
    prepare_qat,
    report,
)

ops = torch.ops.horizon

FUNCTIONS = {
    "hardswish": nn.Hardswish(inplace=True),
    "hardsigmoid": nn.Hardsigmoid(),
    "hardtanh": nn.Hardtanh(-1.5, 0.5),
    "sigmoid": nn.Sigmoid(),
    "tanh": nn.Tanh(),
    "silu": nn.SiLU(),
    "mish": nn.Mish(),
    "gelu": nn.GELU(),
    "gelu_tanh": nn.GELU("tanh"),
    "leaky_relu": nn.LeakyReLU(0.1),
    "prelu": nn.PReLU(),
    "elu": nn.ELU(0.7),
    "celu": nn.CELU(0.7),
    "selu": nn.SELU(),
    "softplus": nn.Softplus(2.0),
    "softsign": nn.Softsign(),
    "log_sigmoid": nn.LogSigmoid(),
}


@pytest.mark.parametrize("backend", ["horizon", "x86"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_exact_at_every_stage(name, backend):
    layer = copy.deepcopy(FUNCTIONS[name])
    net = nn.Sequential(QuantStub(), nn.Conv2d(3, 4, 1), layer, DeQuantStub()).train()
    model = prepared(net, 3 * X, backend)
    assert report(model).float_layers == []
    assert_all_equal(later_stages(model, 3 * X))


@pytest.mark.parametrize("backend", ["horizon", "tensorrt", "x86"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_code_gives_the_functions_value_quantized_in_double(name, backend):
    layer = copy.deepcopy(FUNCTIONS[name])
    net = nn.Sequential(QuantStub(), layer, DeQuantStub()).train()
    net.qconfig = get_default_qat_qconfig(backend=backend)
    model = prepare_qat(net)
    model(4 * X)
    int8 = convert(model.eval())
    q = torch.arange(256, dtype=torch.uint8)
    s, z = int8[0].scale.double(), int8[0].zero_point.double()
    out_s, out_z = int8[1].scale, int8[1].zero_point.double()
    with torch.no_grad():
        value = layer.double()((q.double() - z) * s)
    # numerics.md: clamp(rint(x * (1/s)) + z), with 1/s rounded to fp32
    expected = (value * (1 / out_s).double()).round() + out_z
    result = int8[1](_tagged(q, int8[0]))
    assert torch.equal(result.double(), expected.clamp(0, 255))


def _tagged(q: Tensor, stub: nn.Module) -> Tensor:
    q._horizon_grid = ("codes", stub.scale, stub.zero_point, 0, "0")
    return q


@pytest.mark.parametrize("backend", ["horizon", "x86"])
def test_slopes_for_each_channel_are_exact_and_are_those_of_their_channels(backend):
    net = nn.Sequential(QuantStub(), nn.Conv2d(3, 4, 1), nn.PReLU(4), DeQuantStub()).train()
    with torch.no_grad():
        net[2].weight.copy_(torch.tensor([0.0, 0.25, -0.5, 2.0]))
    model = prepared(net, X, backend)
    assert report(model).float_layers == []
    assert_all_equal(later_stages(model, X))
    seen = []
    model[2].register_forward_hook(lambda module, args, y: seen.extend((args[0], y)))
    with torch.no_grad():
        model(X)
    x, y = seen
    expected = torch.where(x < 0, model[2].weight.view(1, 4, 1, 1) * x, x)
    # half a step, but for rounding in fp32
    assert (y - expected).abs().max() <= 0.501 * model[2].activation_post_process.scale


@pytest.mark.parametrize("name", ["hardswish", "silu", "gelu", "sigmoid"])
def test_the_functional_form_is_refused_with_the_modules_name(name):
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.quant, self.conv, self.dequant = QuantStub(), nn.Conv2d(3, 2, 1), DeQuantStub()

        def forward(self, x: Tensor) -> Tensor:
            return self.dequant(self.conv(getattr(F, name)(self.quant(x))))

    model = prepared(Net().train(), X)
    with pytest.raises(ValueError, match=rf"'{name}', a float op on the result of quant: use the"):
        convert(model)


@pytest.mark.parametrize("shape", [(3, 5), (2, 3, 7)])
@pytest.mark.parametrize("backend", ["horizon", "x86"])
def test_a_batch_norm_of_vectors_is_exact_alone(shape, backend):
    x = torch.randn(shape)
    net = nn.Sequential(QuantStub(), nn.BatchNorm1d(shape[1]), DeQuantStub()).train()
    assert_all_equal(later_stages(prepared(net, x, backend), x))


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 1000, 70_001])
def test_lookup_is_indexing(count):
    q = torch.randint(0, 256, (count,), dtype=torch.uint8)
    table = torch.randint(0, 256, (256,), dtype=torch.uint8)
    assert torch.equal(ops.quantized_lookup(q, table), table[q.long()])


def test_lookup_keeps_layouts_and_reads_views():
    q = torch.randint(0, 256, (2, 6, 5, 4), dtype=torch.uint8)
    table = torch.arange(255, -1, -1, dtype=torch.uint8)
    for view in (q.contiguous(memory_format=torch.channels_last), q[:, ::2], q.transpose(1, 3)):
        out = ops.quantized_lookup(view, table)
        assert torch.equal(out, 255 - view)
        assert out.stride() == torch.empty_like(view).stride()


@pytest.mark.parametrize(
    ("q", "table", "error", "text"),
    [
        (torch.zeros(3), torch.zeros(256).byte(), TypeError, "'q' must be uint8, got float32"),
        (torch.zeros(3).byte(), torch.zeros(256), TypeError, "'table' must be uint8, got float32"),
        (torch.zeros(3).byte(), torch.zeros(255).byte(), ValueError, "'table' must be of shape"),
        (
            torch.zeros(3).byte(),
            torch.zeros(256, device="meta").byte(),
            ValueError,
            "'table' must be on the device of 'q'",
        ),
    ],
)
def test_lookup_refuses_by_name(q, table, error, text):
    with pytest.raises(error, match=text):
        ops.quantized_lookup(q, table)


def test_lookup_is_a_well_formed_operator():
    q = torch.randint(0, 256, (2, 3), dtype=torch.uint8)
    table = torch.arange(256, dtype=torch.uint8)
    torch.library.opcheck(ops.quantized_lookup.default, (q, table))


class EveryFunction(nn.Module):
    """All functions of one tensor, side by side."""

    def __init__(self) -> None:
        super().__init__()
        layers = [copy.deepcopy(layer) for layer in FUNCTIONS.values()]
        layers[0] = nn.Hardswish()  # not in place
        self.functions, self.cat = nn.ModuleList([*layers, nn.PReLU(4)]), FloatFunctional()

    def forward(self, x: Tensor) -> Tensor:
        return self.cat.cat([function(x) for function in self.functions], 1)


def test_tables_are_the_same_on_every_instruction_set(tmp_path):
    net = nn.Sequential(QuantStub(), nn.Conv2d(3, 4, 1), EveryFunction(), DeQuantStub())
    model = prepared(net.train(), 3 * X)
    with torch.no_grad():
        expected = model(3 * X)
        silent_jit(torch.jit.save, trace(convert(model), 3 * X), str(tmp_path / "net.pt"))
    torch.save((3 * X, expected), tmp_path / "data.pt")
    program = (
        "import sys, warnings, torch, horizon_plugin\n"
        "warnings.simplefilter('ignore')\n"
        "x, expected = torch.load(sys.argv[1] + '/data.pt')\n"
        "assert torch.equal(torch.jit.load(sys.argv[1] + '/net.pt')(x), expected)\n"
    )
    # torch's own functions make the tables: its instruction sets count as well as ours.
    for ours, torchs in (("generic", "default"), ("avx2", "avx2"), ("avx512", "avx512")):
        env = os.environ | {"HORIZON_CPU_CAPABILITY": ours, "ATEN_CPU_CAPABILITY": torchs}
        subprocess.run([sys.executable, "-c", program, str(tmp_path)], env=env, check=True)
