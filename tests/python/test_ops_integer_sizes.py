"""Sizes at which the single integer ops choose another loop: long rows, few channels, tables."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from integer_reference import NONE, RELU, RELU6, centred, codes, f32, finish, point, scalar
from torch.nn import functional as F

ops = torch.ops.horizon
FORMATS = [torch.contiguous_format, torch.channels_last]
X, Y = (scalar(0.05), point(128)), (scalar(0.0371), point(77))
# As fp32 holds them, in double.
SX, SY = float(f32(0.05)), float(f32(0.0371))
F64 = torch.float64


def test_a_long_map_looks_up_what_a_short_one_computes() -> None:
    every = torch.arange(256, dtype=torch.uint8)
    q = codes(3, 5, 37, 41)
    for act in (NONE, RELU, RELU6):
        table = ops.quantized_affine_scalar(every, *X, -1.7, 0.3, *Y, act)
        actual = ops.quantized_affine_scalar(q, *X, -1.7, 0.3, *Y, act)
        assert torch.equal(actual, table[q.long()])


@pytest.mark.parametrize("act", [NONE, RELU, RELU6])
@pytest.mark.parametrize("constants", [(1.0, 0.0), (-0.7, 1.3), (0.0, 2.0)])
def test_two_numbers_map_as_two_tensors_of_one_entry(
    act: int, constants: tuple[float, float]
) -> None:
    q = codes(2, 3, 7, 5).contiguous(memory_format=torch.channels_last)
    factor, offset = (torch.tensor(c, dtype=F64) for c in constants)
    actual = ops.quantized_affine_scalar(q, *X, *constants, *Y, act)
    assert torch.equal(actual, ops.quantized_affine(q, *X, factor, offset, *Y, act))
    assert actual.stride() == q.stride()


@pytest.mark.parametrize("channels", [1, 3, 17, 24, 64, 100])
@pytest.mark.parametrize("side", [1, 2, 31])
@pytest.mark.parametrize("format", FORMATS)
def test_channels_are_mapped_whether_or_not_they_fill_vectors(
    channels: int, side: int, format: torch.memory_format
) -> None:
    q = codes(2, channels, side, side).contiguous(memory_format=format)
    factor, offset = torch.randn(channels, dtype=F64), torch.randn(channels, dtype=F64)
    actual = ops.quantized_affine(q, *X, factor, offset, *Y, NONE).numpy()
    shape = (channels, 1, 1)
    m = ((SX * factor.numpy()) / SY).astype(f32).reshape(shape)
    b = (offset.numpy() / SY).astype(f32).reshape(shape)
    v = centred(q, 128).astype(f32) * m
    np.testing.assert_array_equal(actual, finish(v + b, NONE, SY, 77))


POOLINGS = [
    {"kernel_size": [2, 2], "stride": [2, 2]},
    {"kernel_size": [3, 3], "stride": [2, 2], "padding": [1, 1]},
    {"kernel_size": [3, 3], "stride": [1, 1], "padding": [1, 1], "count_include_pad": False},
    {"kernel_size": [5, 4], "stride": [3, 3], "padding": [2, 1], "ceil_mode": True},
]


@pytest.mark.parametrize("options", POOLINGS)
@pytest.mark.parametrize("shape", [(2, 3, 11, 83), (3, 5, 40), (1, 1, 4, 200), (2, 65, 3, 50)])
@pytest.mark.parametrize("format", FORMATS)
def test_wide_images_are_averaged_as_torch_does(
    options: dict[str, object], shape: tuple[int, ...], format: torch.memory_format
) -> None:
    q = codes(*shape)
    if q.dim() == 4:
        q = q.contiguous(memory_format=format)
    all_options = {"padding": [0, 0], "ceil_mode": False, "count_include_pad": True} | options
    actual = ops.quantized_avg_pool2d(
        q,
        *X,
        *(all_options[k] for k in ("kernel_size", "stride", "padding")),
        all_options["ceil_mode"],
        all_options["count_include_pad"],
        None,
        *Y,
    )
    # With divisor 1 torch's pooling is a sum; that of ones over their mean is the count.
    summing = all_options | {"divisor_override": 1}
    ones = torch.ones(1, 1, *shape[-2:], dtype=F64)
    sums = F.avg_pool2d(q.contiguous().double() - 128, **summing).numpy()
    counts = np.rint((F.avg_pool2d(ones, **summing) / F.avg_pool2d(ones, **all_options)).numpy())
    counts = counts[0, 0]
    multiplier = (SX / (SY * counts)).astype(f32)
    np.testing.assert_array_equal(
        actual.numpy(), finish(sums.astype(f32) * multiplier, NONE, SY, 77)
    )
    if q.dim() == 4:
        assert actual.is_contiguous(memory_format=format)


@pytest.mark.parametrize("height", [256, 257, 258, 600])
@pytest.mark.parametrize("channels", [1, 3, 70])
@pytest.mark.parametrize("format", FORMATS)
def test_columns_of_more_codes_than_16_bits_hold_are_summed(
    height: int, channels: int, format: torch.memory_format
) -> None:
    # 258 * 255 = 65790 > 2^16.
    q = torch.full((1, channels, height, 2), 255, dtype=torch.uint8)
    q = q.contiguous(memory_format=format)
    for size in ([1, 1], [1, 2]):
        pooled = ops.quantized_adaptive_avg_pool2d(
            q, scalar(1.0), point(0), size, scalar(1.0), point(0)
        )
        assert pooled.unique().tolist() == [255]


@pytest.mark.parametrize("channels", [(64, 64), (3, 5), (1, 130)])
@pytest.mark.parametrize("format", FORMATS)
def test_long_operands_are_joined_as_short_ones(
    channels: tuple[int, int], format: torch.memory_format
) -> None:
    q = [codes(2, c, 33, 7, seed=c).contiguous(memory_format=format) for c in channels]
    scales, zeros = [X[0], Y[0]], [X[1], Y[1]]
    actual = ops.quantized_cat(q, scales, zeros, 1, *Y)
    onto = finish(centred(q[0], 128).astype(f32) * f32(SX / SY), NONE, SY, 77)
    np.testing.assert_array_equal(actual.numpy(), np.concatenate([onto, q[1].numpy()], 1))
