"""Training on any number of threads: the same bits from run to run, and what threads may change."""

from __future__ import annotations

import pytest
import torch
from fused_group import RELU6, Group, Quantizer, copies
from networks import NETWORKS, randomize
from torch import Tensor

from horizon_plugin.quantization import fuse_modules, get_default_qat_qconfig, prepare_qat

ops = torch.ops.horizon
THREADS = (1, 2, 3, 7)

# One input channel and one tap: z is a product without a sum, so that every difference is ours.
POINTWISE = {
    "kernel": (1, 1),
    "padding": (0, 0),
    "act": RELU6,
    "bias": False,
}
VECTORS = ("bn_weight", "bn_bias")


def results(group: Group, tensors: dict[str, Tensor | None], threads: int) -> dict[str, Tensor]:
    """Outputs, gradients of what follows z, statistics and ranges."""
    torch.set_num_threads(threads)
    t, quantizer = copies(tensors), Quantizer()
    y = group.fused(t, quantizer, quantize_weight=True)[0]
    names = [*VECTORS, *(["skip"] if group.add else [])]
    grad = torch.linspace(-1, 1, y.numel()).reshape(y.shape)
    grads = torch.autograd.grad(y, [t[name] for name in names], grad)
    statistics = {name: t[name] for name in ("running_mean", "running_var")}
    return {"y": y, **dict(zip(names, grads, strict=True)), **statistics, **quantizer.state}


@pytest.mark.parametrize("channels", [1, 3, 7, 17, 40, 300])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("add", [False, True])
def test_a_group_gives_the_same_bits_on_any_number_of_threads(channels, channels_last, add):
    # 300,000 elements and a ragged end: several chunks of statistics, and a short last row.
    side = int((300_000 / channels / 3) ** 0.5)
    group = Group(
        channels=(1, channels),
        image=(side, side + 1),
        batch=3,
        channels_last=channels_last,
        add=add,
        **POINTWISE,
    )
    tensors = group.tensors()
    expected = results(group, tensors, 1)
    for threads in THREADS:
        found = results(group, tensors, threads)
        assert [k for k, v in found.items() if not torch.equal(v, expected[k])] == [], threads


@pytest.mark.parametrize("channels", [1, 3, 7, 17, 40, 300])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("threads", [1, 3])
def test_statistics_of_many_chunks_are_those_in_double(channels, channels_last, threads):
    side = int((300_000 / channels / 3) ** 0.5)
    group = Group(
        channels=(1, channels),
        image=(side, side + 1),
        batch=3,
        channels_last=channels_last,
        momentum=1.0,
        **POINTWISE,
    )
    tensors = group.tensors()
    # A mean of a thousand deviations; images of other means, so that chunks differ.
    tensors["input"] += 1000 + torch.arange(3.0).reshape(3, 1, 1, 1)
    torch.set_num_threads(threads)
    t = copies(tensors)
    group.fused(t, None, quantize_weight=False)
    z = (tensors["input"] * tensors["weight"].reshape(1, -1, 1, 1)).double()
    mean, variance = z.mean((0, 2, 3)), z.var((0, 2, 3))
    torch.testing.assert_close(t["running_mean"].double(), mean, rtol=1e-6, atol=0)
    torch.testing.assert_close(t["running_var"].double(), variance, rtol=1e-5, atol=0)


def elementwise(x: Tensor) -> dict[str, Tensor]:
    """Every quantizing operator of training on one tensor."""
    leaf = x.clone().requires_grad_()
    scale, zero = torch.tensor(0.02), torch.tensor(3, dtype=torch.int32)
    scales = torch.linspace(0.01, 0.03, x.size(1))
    zeros = torch.arange(x.size(1), dtype=torch.int32) % 5
    state = [torch.zeros(()), torch.zeros(()), torch.tensor(0), torch.ones(()), zero.clone()]
    tensor = ops.fake_quantize_per_tensor(leaf, scale, zero, -128, 127)
    channel = ops.fake_quantize_per_channel(leaf, scales, zeros, 1, -128, 127)
    observed = ops.quantize_activation(leaf, *state, 2, 0, 0.01, True, True, False)[0]
    (grad,) = torch.autograd.grad((tensor * channel * observed).sum(), leaf)
    weight = ops.fake_quantize_weight(x, 0, 1)
    codes = ops.quantize(x, scale, zero)
    return {
        "tensor": tensor,
        "channel": channel,
        "observed": observed,
        "grad": grad,
        "weight": weight,
        "codes": codes,
        "floats": ops.dequantize(codes, scale, zero, None),
        **{str(i): s for i, s in enumerate(state)},
    }


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_operators_give_the_same_bits_on_any_number_of_threads(layout, dtype):
    x = torch.randn(5, 17, 41, 43).to(dtype).contiguous(memory_format=layout)
    torch.set_num_threads(1)
    expected = elementwise(x)
    for threads in THREADS:
        torch.set_num_threads(threads)
        found = elementwise(x)
        assert [k for k, v in found.items() if not torch.equal(v, expected[k])] == [], threads


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_repeats_to_the_bit_on_any_number_of_threads(name):
    def step() -> list[Tensor]:
        torch.manual_seed(5)
        model = randomize(NETWORKS[name]()).train().to(memory_format=torch.channels_last)
        model = fuse_modules(model, model.groups(), inplace=True)
        model.qconfig = get_default_qat_qconfig()
        model = prepare_qat(model, inplace=True)
        x = torch.randn(NETWORKS[name].input_shape).contiguous(memory_format=torch.channels_last)
        y = model(x)
        y.square().mean().backward()
        return [y, *(p.grad for p in model.parameters()), *model.buffers()]

    for threads in THREADS:
        torch.set_num_threads(threads)
        for one, other in zip(step(), step(), strict=True):
            assert torch.equal(one, other), threads
