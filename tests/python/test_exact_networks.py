"""Whole networks: every stage equals prepared eval to the bit, in every preset."""

from __future__ import annotations

import pytest
import torch
from networks import ALL_NETWORKS, randomize
from stages import reload, trace

from horizon_plugin.quantization import (
    convert,
    fuse_modules,
    get_default_qat_qconfig,
    prepare_qat,
    report,
)

# The others of `networks` run in test_exact_stages.
NAMES = ("resnet50", "mobilenet_v3", "detector", "densenet", "shufflenet_v2")


def flat(result: object) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    values = result.values() if isinstance(result, dict) else result
    return [tensor for value in values for tensor in flat(value)]  # type: ignore[union-attr]


@pytest.mark.parametrize("backend", ["horizon", "x86", "tensorrt"])
@pytest.mark.parametrize("name", NAMES)
def test_every_stage_of_a_network_gives_the_same_bits(name, backend):
    net = randomize(ALL_NETWORKS[name]()).train()
    # A tracer warns about lists.
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
        stages = [int8, reload(trace(int8, x))]
        if backend == "horizon":  # a trace of the prepared model takes as long as all the others
            stages.append(trace(model, x))
        for stage in stages:
            results = flat(stage(x))
            assert all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))
