"""Whole networks: every stage equals prepared eval to the bit, in every preset."""

from __future__ import annotations

import pytest
import torch
from networks import ALL_NETWORKS, randomize
from networks.mlp import MLP
from stages import reload, script, trace

from horizon_plugin.quantization import (
    convert,
    fuse_modules,
    get_default_qat_qconfig,
    prepare_qat,
    report,
)

# The others of `networks` run in test_exact_stages.
NAMES = ("resnet50", "mobilenet_v3", "detector", "densenet", "shufflenet_v2")
NETS = {name: ALL_NETWORKS[name] for name in NAMES} | {"mlp": MLP}
# Towers that the levels share are called with several scales.
NOT_SCRIPTABLE = ("detector",)


def flat(result: object) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    values = result.values() if isinstance(result, dict) else result
    return [tensor for value in values for tensor in flat(value)]  # type: ignore[union-attr]


@pytest.mark.parametrize("backend", ["horizon", "x86", "tensorrt"])
@pytest.mark.parametrize("name", NETS)
def test_every_stage_of_a_network_gives_the_same_bits(name, backend):
    net = randomize(NETS[name]()).train()
    # A script for one preset, a trace for the others: the values of a grid change neither.
    scripts = backend == "tensorrt" and name not in NOT_SCRIPTABLE
    if not scripts:
        # A tracer warns about lists, and a script takes no such hook.
        net.register_forward_hook(lambda module, args, y: tuple(flat(y)))
    x = torch.randn(2, *net.input_shape[1:])
    fuse_modules(net, net.groups(), inplace=True)
    net.qconfig = get_default_qat_qconfig(backend=backend)
    model = prepare_qat(net, inplace=True)
    model(x)
    model.eval()
    with torch.no_grad():
        expected = flat(model(x))
        assert report(model).float_layers == []
        int8 = convert(model)
        int8(x)  # a script knows the grids of the last forward
        stages = [int8, reload(script(int8) if scripts else trace(int8, x))]
        if backend == "horizon":  # a trace of the prepared model takes as long as all the others
            stages.append(trace(model, x))
        for stage in stages:
            results = flat(stage(x))
            assert all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))
