"""What the fused op refuses, and that a refusal changes nothing."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from fused_group import CONV, LINEAR, TRANSPOSED, Group, Quantizer, copies

F32, F64, F16 = torch.float32, torch.float64, torch.float16

VALUES: list[tuple[Group, dict[str, Any], str]] = [
    (Group(), {"base": 3}, "'base' must be 0 (conv2d), 1 (conv_transpose2d) or 2 (linear), got 3"),
    (Group(), {"activation": -1}, "'activation' must be 0 (none), 1 (relu) or 2 (relu6), got -1"),
    (Group(), {"input": torch.randn(3, 4)}, "'input' must be 3-D or 4-D, got shape [3, 4]"),
    (
        Group(),
        {"input": torch.randn(4, 7, 6)},
        "'input' must be 4-D with a batch norm, got shape [4, 7, 6]",
    ),
    (
        Group(),
        {"input": torch.randn(3, 5, 7, 6)},
        "'input' must be of 4 channels, as the weight of shape [6, 4, 3, 3] with 1 groups, got "
        "shape [3, 5, 7, 6]",
    ),
    (
        Group(padding=(0, 0)),
        {"input": torch.randn(3, 4, 2, 6)},
        "'input' must be large enough for the kernel (output of at least 1 x 1), got shape "
        "[3, 4, 2, 6]",
    ),
    (
        Group(),
        {"input": torch.randn(3, 4, 0, 6)},
        "'input' must be large enough for the kernel (output of at least 1 x 1), got shape "
        "[3, 4, 0, 6]",
    ),
    (Group(), {"weight": torch.randn(6, 4, 3, 0)}, "'weight' must be not empty"),
    (Group(), {"stride": [0, 1]}, "'stride' must be a list of numbers of at least 1, got [0, 1]"),
    (Group(), {"stride": [1]}, "'stride' must be a list of 2 numbers, got [1]"),
    (Group(), {"dilation": [1, -1]}, "'dilation' must be a list of numbers of at least 1"),
    (Group(), {"padding": [-1, 0]}, "'padding' must be a list of numbers of at least 0"),
    (Group(), {"padding": [1, 1, 1]}, "'padding' must be a list of 2 or 4 numbers, got [1, 1, 1]"),
    (
        Group(base=TRANSPOSED),
        {"padding": [1, 1, 1, 1]},
        "'padding' must be a list of 2 numbers, got [1, 1, 1, 1]",
    ),
    (Group(), {"output_padding": [1, 0]}, "'output_padding' must be 0 for a convolution"),
    (
        Group(base=TRANSPOSED),
        {"output_padding": [1, 0]},
        "'output_padding' must be smaller than stride or dilation, got [1, 0]",
    ),
    (Group(), {"groups": 0}, "'groups' must be"),
    (Group(), {"groups": 4}, "'"),
    (
        Group(base=LINEAR, bn=True),
        {"input": torch.randn(2, 3, 4)},
        "'input' must be 2-D with a batch norm after Linear, got shape [2, 3, 4]",
    ),
    (Group(base=LINEAR, bn=False), {"input": torch.ones(())}, "'input' must be at least 1-D"),
    (
        Group(base=LINEAR),
        {"input": torch.randn(3, 5)},
        "'input' must be of 4 features, got shape [3, 5]",
    ),
    (Group(bias=True), {"bias": torch.randn(4)}, "'bias' must be of shape [6], got [4]"),
    (Group(), {"bn_weight": torch.randn(4)}, "'bn_weight' must be of shape [6], got [4]"),
    (Group(), {"running_mean": None}, "'running_mean' must be given together with running_var"),
    (
        Group(train=False),
        {"running_mean": None, "running_var": None},
        "'running_mean' must be given unless batch_stats, got None",
    ),
    (Group(bn=False), {"batch_stats": True}, "'batch_stats' must be False without a batch norm"),
    (Group(), {"eps": -1.0}, "'eps' must be finite and at least 0, got -1"),
    (Group(), {"momentum": float("nan")}, "'momentum' must be finite or None, got nan"),
    (
        Group(),
        {"num_batches_tracked": torch.zeros(2, dtype=torch.int64)},
        "'num_batches_tracked' must be a tensor with one element",
    ),
    (
        Group(add=True),
        {"skip": torch.randn(3, 6, 7, 5)},
        "'skip' must be broadcastable with the result of shape [3, 6, 7, 6], got shape "
        "[3, 6, 7, 5]",
    ),
    (Group(), {"skip_scale": torch.tensor(1.0)}, "'skip_scale' must be None without a skip"),
    (
        Group(),
        {"input_scale": torch.tensor(1.0)},
        "'input_scale' must be given together with input_zero_point",
    ),
    (Group(), {"integer": True}, "'input_scale' must be given with integer=True, got None"),
]

GRID = {"input_scale": torch.tensor(0.1), "input_zero_point": torch.tensor(128)}
INTEGER = {**GRID, "integer": True, "quantize_weight": True}
VALUES += [
    (Group(), INTEGER, "'batch_stats' must be False with integer=True, got True"),
    (
        Group(train=False, add=True),
        INTEGER,
        "'skip_scale' must be given with integer=True and a skip, got None",
    ),
    (
        Group(train=False),
        {**INTEGER, "quantize_weight": False},
        "'quantize_weight' must be True with integer=True, got False",
    ),
    (Group(), {**GRID, "input_scale": torch.tensor(-0.1)}, "'input_scale' must be finite"),
    (Group(), {**GRID, "input_zero_point": torch.tensor(256)}, "'input_zero_point' must be in"),
]

TYPES: list[tuple[Group, dict[str, Any], str]] = [
    (
        Group(),
        {"input": torch.ones(3, 4, 7, 6, dtype=torch.int32)},
        "'input' must be float32, float64, float16 or bfloat16, got int32",
    ),
    (
        Group(),
        {"input": torch.ones(3, 4, 7, 6, dtype=torch.complex64)},
        "'input' must be float32, float64, float16 or bfloat16, got complex64",
    ),
    (
        Group(),
        {"weight": torch.ones(6, 4, 3, 3, dtype=F64)},
        "'weight' must be float32, got float64",
    ),
    (Group(bias=True), {"bias": torch.ones(6, dtype=F16)}, "'bias' must be float32, got float16"),
    (
        Group(),
        {"bn_bias": torch.ones(6, dtype=F64)},
        "'bn_bias' must be float32, got float64",
    ),
    (
        Group(),
        {"num_batches_tracked": torch.zeros(())},
        "'num_batches_tracked' must be int64, got float32",
    ),
    (
        Group(add=True),
        {"skip": torch.ones(3, 6, 7, 6, dtype=F64)},
        "'skip' must be float32, got float64",
    ),
    (
        Group(),
        {**GRID, "input_scale": torch.tensor(1)},
        "'input_scale' must be float32, float64, float16 or bfloat16, got int64",
    ),
    (
        Group(),
        {**GRID, "input_zero_point": torch.tensor(1.0)},
        "'input_zero_point' must be int32 or int64, got float32",
    ),
    (
        Group(),
        {"input": torch.randn(3, 4, 7, 6).to_sparse()},
        "'input' must be a dense tensor, got Sparse",
    ),
]


def assert_refused(
    kind: type[Exception], group: Group, changes: dict[str, Any], text: str, prefix: str = "fused: "
) -> None:
    for grad in (False, True):
        t, quantizer = copies(group.tensors(), grad), Quantizer()
        before = copies(t, False)
        with pytest.raises(kind, match=re.escape(prefix + text)):
            group.fused(t, quantizer, **changes)
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            assert t[name] is None or torch.equal(t[name], before[name])
        assert int(quantizer.observed) == 0


@pytest.mark.parametrize(("group", "changes", "text"), VALUES, ids=[v[2][:50] for v in VALUES])
def test_bad_values_are_refused(group: Group, changes: dict[str, Any], text: str) -> None:
    if "integer" in changes and "quantize_weight" in changes:
        t = group.tensors()
        with pytest.raises(ValueError, match=re.escape("fused: " + text)):
            group.fused(t, Quantizer(observe=False), **changes)
        return
    assert_refused(ValueError, group, changes, text)


@pytest.mark.parametrize(("group", "changes", "text"), TYPES, ids=[v[2][:50] for v in TYPES])
def test_bad_types_are_refused(group: Group, changes: dict[str, Any], text: str) -> None:
    assert_refused(TypeError, group, changes, text)


def test_observing_in_integer_mode_is_refused() -> None:
    t = Group(train=False).tensors()
    with pytest.raises(ValueError, match="'observe' must be False with integer=True, got True"):
        Group(train=False).fused(t, Quantizer(), **INTEGER)


def test_one_value_per_channel_is_refused_as_by_batch_norm() -> None:
    for group, size in (
        (Group(base=LINEAR, batch=1), "[1, 6]"),
        (Group(base=CONV, batch=1, image=(1, 1)), "[1, 6, 1, 1]"),
    ):
        for grad in (False, True):
            t = copies(group.tensors(), grad)
            text = (
                "Expected more than 1 value per channel when training, got input size torch.Size("
            )
            with pytest.raises(ValueError, match=re.escape(f"{text}{size})")):
                group.fused(t)
            assert t["num_batches_tracked"] == 4
            with pytest.raises(ValueError, match=re.escape(f"{text}{size})")):
                group.chain(copies(t))
        group.but(train=False).fused(t)


def test_tensors_on_other_devices_are_refused() -> None:
    group = Group(add=True)
    for name in ("weight", "bn_weight", "running_var", "skip"):
        t = group.tensors()
        t[name] = t[name].to("meta")
        with pytest.raises((ValueError, NotImplementedError), match=r"device|meta"):
            group.fused(t)


def test_a_partial_quantizer_is_refused() -> None:
    group = Group()
    arguments = group.arguments(group.tensors(), Quantizer())
    with pytest.raises(ValueError, match="'min_val' must be given with max_val"):
        torch.ops.horizon.fused(**{**arguments, "scale": None})


def test_nan_with_integer_arithmetic_is_refused() -> None:
    group = Group(train=False)
    t = group.tensors()
    t["input"][0, 0, 0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"NaN|nan"):
        group.fused(t, Quantizer(observe=False), **INTEGER)


def test_a_broken_scale_is_refused() -> None:
    group = Group()
    for scale in (0.0, -1.0, float("nan"), float("inf")):
        t, quantizer = group.tensors(), Quantizer(observe=False, scale=torch.tensor(scale))
        with pytest.raises(ValueError, match="fused: 'scale' must be finite and positive"):
            group.fused(t, quantizer)
        assert t["num_batches_tracked"] == 4
