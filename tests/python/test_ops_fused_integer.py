"""The fused op's integer forward: what is validated is what is deployed."""

from __future__ import annotations

import itertools

import pytest
import torch
from fused_group import (
    CONV,
    DIFFERENTIABLE,
    LINEAR,
    NONE,
    RELU,
    RELU6,
    TRANSPOSED,
    X86,
    Group,
    Quantizer,
    copies,
    on_grid,
)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Small tensors: a second thread only waits, which is slow on a busy machine."""
    torch.set_num_threads(1)


Tensors = dict[str, "torch.Tensor | None"]

INTEGER = [
    Group(base=base, bn=bn, add=add, act=act, train=False, bias=bias)
    for base, bn, add, act, bias in itertools.product(
        (CONV, TRANSPOSED, LINEAR), (False, True), (False, True), (NONE, RELU, RELU6), (False, True)
    )
]


def integer_tensors(group: Group) -> Tensors:
    t = group.tensors()
    zero = torch.tensor(128, dtype=torch.int32)
    t["input"] = on_grid(t["input"].float(), 0.03, 128).to(group.dtype)
    t["input_scale"], t["input_zero_point"] = torch.tensor(0.03), zero
    if group.add:
        t["skip"] = on_grid(t["skip"].float(), 0.02, 128).to(group.dtype)
        t["skip_scale"], t["skip_zero_point"] = torch.tensor(0.02), zero
    return t


def converted(group: Group, t: Tensors, quantizer: Quantizer | None) -> torch.Tensor:
    """What the converted model computes: codes in, codes out, dequantized."""
    ops = torch.ops.horizon
    scale = ops.weight_scale(t["weight"], group.base, group.groups)
    weight = ops.quantize_weight(t["weight"], scale, group.base, group.groups)
    factor, offset = ops.fold_batch_norm(
        t["bias"], t["bn_weight"], t["bn_bias"], t["running_mean"], t["running_var"], group.eps,
        group.channels[1],
    )  # fmt: skip
    skip = t["skip"]
    if skip is not None:
        skip = ops.quantize(skip, t["skip_scale"], t["skip_zero_point"])
    low = 0 if quantizer is None else quantizer.range[0]
    out = (None, None)
    if quantizer is not None:
        out = (quantizer.scale, quantizer.zero_point - low)
    y = ops.quantized_conv(
        ops.quantize(t["input"], t["input_scale"], t["input_zero_point"]),
        t["input_scale"], t["input_zero_point"], weight, scale, factor, offset, skip,
        t.get("skip_scale"), t.get("skip_zero_point"), *out, group.base, group.stride,
        group.padding, group.dilation, group.output_padding, group.groups, group.act,
    )  # fmt: skip
    return y if quantizer is None else ops.dequantize(y, *out)


@pytest.mark.parametrize("group", INTEGER, ids=lambda g: f"{g}{'-bias' if g.bias else ''}")
def test_prepared_eval_is_the_converted_model_to_the_bit(group: Group) -> None:
    for channels_last in (False, True):
        case = group.but(channels_last=channels_last and group.base != LINEAR)
        t = integer_tensors(case)
        for quantizer in (
            Quantizer(observe=False, scale=torch.tensor(0.04)),
            Quantizer(
                observe=False, preset=X86, scale=torch.tensor(0.03),
                zero_point=torch.tensor(77, dtype=torch.int32),
            ),
            None,
        ):  # fmt: skip
            expected = converted(case, t, quantizer)
            y, scale, _ = case.fused(t, quantizer, quantize_weight=True, integer=True)
            assert torch.equal(y, expected) and scale.numel() == (quantizer is not None)
            if quantizer is not None:
                off = Quantizer(observe=False, fake_quantize=False, scale=torch.tensor(0.04))
                high = case.fused(t, off, quantize_weight=True, integer=True)[0]
                assert torch.equal(high, converted(case, t, None))


def test_integer_eval_with_gradients_has_those_of_the_float_simulation() -> None:
    for group in INTEGER[::3]:
        tensors = integer_tensors(group)
        quantizer = Quantizer(observe=False, scale=torch.tensor(0.02))
        a, b = copies(tensors), copies(tensors)
        y = group.fused(a, quantizer, quantize_weight=True, integer=True)[0]
        simulated = group.fused(b, quantizer, quantize_weight=True)[0]
        assert torch.equal(y.detach(), converted(group, tensors, quantizer))
        assert float((y - simulated).detach().abs().max()) <= 0.02 * 1.001
        grad = torch.randn_like(y)
        y.backward(grad), simulated.backward(grad)
        for name in DIFFERENTIABLE:
            if a[name] is not None:
                assert torch.equal(a[name].grad, b[name].grad), name


def test_integer_eval_takes_other_dtypes_and_shapes() -> None:
    quantizer = Quantizer(observe=False, scale=torch.tensor(0.03125))
    expected = None
    for dtype in (torch.float32, torch.float64, torch.float16):
        group = Group(train=False, dtype=dtype)
        t = integer_tensors(group)
        t["input"] = on_grid(t["input"].float(), 0.03125, 128).to(dtype)
        t["input_scale"] = torch.tensor(0.03125)
        t["weight"] = on_grid(t["weight"].float(), 0.0078125, 128).to(dtype)
        y = group.fused(t, quantizer, quantize_weight=True, integer=True)[0]
        assert y.dtype == dtype
        if dtype != torch.float16:
            expected = y.float() if expected is None else expected
            assert torch.equal(y.float(), expected)
    group = Group(bn=False, train=False)
    t = integer_tensors(group)
    batched = group.fused(t, quantizer, quantize_weight=True, integer=True)[0]
    t["input"] = t["input"][1]
    single = group.fused(t, quantizer, quantize_weight=True, integer=True)[0]
    assert torch.equal(single, batched[1])
    for size in ((2, 3, 6, 7, 6), (1, 6, 1, 1), (6, 1, 6)):
        group = Group(train=False)
        t = integer_tensors(group)
        t["skip"] = on_grid(torch.randn(size), 0.02, 128)
        t["skip_scale"], t["skip_zero_point"] = torch.tensor(0.02), torch.tensor(128)
        y = group.fused(t, quantizer, quantize_weight=True, integer=True)[0]
        assert torch.equal(y, converted(group, t, quantizer))
