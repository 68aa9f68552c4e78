"""Whole networks as ONNX: what onnxruntime computes, and with which kernels."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from networks import ALL_NETWORKS, randomize
from onnx_run import HAS_VNNI, optimized_operators, run, steps_apart
from test_exact_networks import flat
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from horizon_plugin.export import to_onnx
from horizon_plugin.quantization import (
    convert,
    fuse_modules,
    get_default_qat_qconfig,
    prepare_qat,
)

# resnet50 is resnet18 once more.
CASES = [(name, "horizon") for name in ALL_NETWORKS if name != "resnet50"]
CASES += [(name, "x86") for name in ("mobilenet_v2", "unet")]


def trained(name: str, backend: str) -> nn.Module:
    net = randomize(ALL_NETWORKS[name]()).train()
    x = torch.randn(2, *net.input_shape[1:])
    fuse_modules(net, net.groups(), inplace=True)
    net.qconfig = get_default_qat_qconfig(backend=backend)
    model = prepare_qat(net, inplace=True)
    model(x)
    model.eval()
    with torch.no_grad():
        model(x)
    return model


class Calls(TorchDispatchMode):
    """Counts calls of groups by the kernel of onnxruntime that can take them."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.horizon.quantized_conv_packed.default:
            given = [argument.name for argument in function._schema.arguments]
            call = dict(zip(given, args, strict=True))
            if call["base"] == 2:
                self.counts["QGemm"] += 1
            elif call["base"] == 1 or call["skip"] is not None or call["output_scale"] is None:
                self.counts["float"] += 1
            else:
                self.counts["QLinearConv"] += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.filterwarnings("ignore:convert. no range was ever observed in blocks.4")
@pytest.mark.parametrize(("name", "backend"), CASES)
def test_onnxruntime_computes_what_the_converted_network_does(name, backend, tmp_path):
    if name == "detector" and not HAS_VNNI:
        pytest.skip("onnxruntime cannot rewrite weights that calls share, for such machines")
    model = trained(name, backend)
    path = tmp_path / "net.onnx"
    x = torch.randn(2, *model.input_shape[1:])
    to_onnx(model, x, path)
    int8 = convert(model)
    # Another batch than the graph was traced with.
    images = torch.randn(3, *model.input_shape[1:])
    with torch.no_grad(), Calls() as calls:
        expected = flat(int8(images))
    for level in ("as written", "optimized"):
        results = run(path, images, level=level)
        apart = torch.cat(
            [steps_apart(a, b).flatten() for a, b in zip(results, expected, strict=True)]
        )
        # An int32 bias is off by half a unit of the sums, which moves one code of a layer in
        # hundreds by one; a code behind several of these may move by two.
        assert apart.max() < 2.01
        assert (apart < 1.01).double().mean() > 0.99
    made = optimized_operators(path)
    assert made["QLinearConv"] == calls.counts["QLinearConv"]
    assert made["QGemm"] == calls.counts["QGemm"]
    assert made["Conv"] + made["FusedConv"] + made["ConvTranspose"] == calls.counts["float"]
