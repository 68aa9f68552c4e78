"""quantized_conv against exact sums and an epilogue of single fp32 roundings."""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from integer_reference import (
    CONV2D,
    CONV_TRANSPOSE2D,
    LINEAR,
    NONE,
    RELU,
    RELU6,
    Group,
    codes,
    random_group,
    spread,
    weights,
)
from torch.nn import functional as F

RANDOM_GROUPS = 300


def check(group: Group) -> torch.Tensor:
    expected = group.expected()
    actual = group.run()
    assert actual.dtype == (torch.float32 if group.y_scale is None else torch.uint8)
    assert tuple(actual.shape) == expected.shape
    np.testing.assert_array_equal(actual.numpy(), expected)
    return actual


@pytest.mark.parametrize("first", range(0, RANDOM_GROUPS, 50))
def test_random_groups_have_the_reference_bits(first: int) -> None:
    used = np.zeros(256, bool)
    for seed in range(first, first + 50):
        actual = check(random_group(seed))
        if actual.dtype == torch.uint8:
            used[np.unique(actual.numpy())] = True
    assert used.sum() > 250  # the outputs are spread over the grid


@functools.cache
def digest() -> str:
    total = hashlib.sha256()
    for seed in range(0, RANDOM_GROUPS, 5):
        total.update(random_group(seed).run().contiguous().numpy().tobytes())
    return total.hexdigest()


@pytest.mark.parametrize(
    "limit",
    [
        {"ATEN_CPU_CAPABILITY": "default"},
        {"ATEN_CPU_CAPABILITY": "avx2"},
        {"ONEDNN_MAX_CPU_ISA": "AVX2"},
        {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_VNNI"},
        {"HORIZON_CPU_CAPABILITY": "generic"},
        {"HORIZON_CPU_CAPABILITY": "avx2"},
        {"HORIZON_CPU_CAPABILITY": "avx512"},
        {"HORIZON_CPU_CAPABILITY": "vnni"},
        {"HORIZON_CPU_CAPABILITY": "amx"},
    ],
    ids=lambda limit: "-".join(limit.values()),
)
def test_every_instruction_set_gives_the_same_bits(limit: dict[str, str]) -> None:
    script = "import horizon_plugin, test_ops_integer_conv as t; print(t.digest())"
    limits = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "HORIZON_CPU_CAPABILITY")
    environment = {k: v for k, v in os.environ.items() if k not in limits}
    environment |= limit | {"PYTHONPATH": str(Path(__file__).parent)}
    run = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == digest()


def test_an_unknown_instruction_set_is_ignored_with_a_warning() -> None:
    script = "import horizon_plugin, horizon_plugin._C as c; print(c.cpu_capability())"
    runs = [
        subprocess.run(
            [sys.executable, "-c", script],
            env=os.environ | {"HORIZON_CPU_CAPABILITY": name},
            capture_output=True,
            text=True,
            check=True,
        )
        for name in ("sse", "generic")
    ]
    assert "must be generic, avx2, avx512, vnni or amx, got 'sse'" in runs[0].stderr
    assert runs[1].stdout.strip() == "generic"


@pytest.mark.parametrize("channels", [1, 3, 4, 7, 16, 17, 64])
@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("sign", [1, -1])
def test_extreme_codes_do_not_saturate_on_the_way(channels: int, kernel: int, sign: int) -> None:
    # 255 * 127 twice is 64770: the 16-bit pair sums of vpmaddubsw would stop at 32767.
    x = torch.full((1, channels, 5, 5), 255, dtype=torch.uint8)
    w = torch.full((3, channels, kernel, kernel), 127 * sign, dtype=torch.int8)
    group = Group(x, w, x_zero=0, y_scale=None, x_scale=1.0)
    group.w_scale = torch.ones(3)
    group.factor = torch.ones(3, dtype=torch.float64)
    group.offset = torch.zeros(3, dtype=torch.float64)
    actual = check(group)
    assert actual.unique().tolist() == [sign * 255 * 127 * channels * kernel * kernel]


@pytest.mark.parametrize("zero_point", [0, 128, 255])
@pytest.mark.parametrize("base", [LINEAR, CONV2D])
def test_the_longest_sums_fit(zero_point: int, base: int) -> None:
    # 65793 * 255 * 127 = 2130706305 < 2^31; it is no fp32 number, so its conversion rounds.
    depth = 65793
    shape = (2, depth) if base == LINEAR else (1, depth, 1, 2)
    x = torch.full(shape, 0 if zero_point >= 128 else 255, dtype=torch.uint8)
    w = torch.full((2, depth) if base == LINEAR else (2, depth, 1, 1), 127, dtype=torch.int8)
    w[1] = -127
    group = Group(x, w, base=base, x_zero=zero_point, y_scale=None, x_scale=1.0)
    group.w_scale = torch.ones(2)
    group.factor = torch.ones(2, dtype=torch.float64)
    group.offset = torch.zeros(2, dtype=torch.float64)
    actual = check(group)
    magnitude = max(zero_point, 255 - zero_point)
    assert actual.abs().max().item() == np.float32(depth * magnitude * 127)


@pytest.mark.parametrize("activation", [NONE, RELU, RELU6])
@pytest.mark.parametrize("y_zero", [0, 128, 3])
@pytest.mark.parametrize("with_skip", [False, True])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_ties_round_to_even(activation: int, y_zero: int, with_skip: bool, sign: float) -> None:
    # M = 2^-8 exactly: every 256th sum, shifted by a half, is a tie.
    group = Group(
        codes(2, 16, 9, 9),
        weights(8, 16, 3, 3) // 16,
        x_scale=2.0**-6,
        y_scale=2.0**-5,
        y_zero=y_zero,
        activation=activation,
        padding=(1, 1),
    )
    group.w_scale = torch.full((8,), 2.0**-7)
    group.factor = torch.full((8,), sign, dtype=torch.float64)
    group.offset = (torch.arange(8, dtype=torch.float64) - 3.5) * 2.0**-5
    if with_skip:
        group.skip, group.skip_scale, group.skip_zero = codes(2, 8, 9, 9), 2.0**-6, 5
    v = group.sums() * (sign * 2.0**-8) + group.offset.numpy()[:, None, None] * 2.0**5
    if with_skip:
        v = v + (group.skip.numpy().astype(np.int64) - 5) * 0.5
    assert (np.abs(v % 1) == 0.5).sum() >= 4
    check(group)


def test_the_multiplication_and_the_offset_round_separately() -> None:
    # 16777215 / 3 as an fp32 product, then + B: one fused rounding would give other codes.
    rng = np.random.default_rng(0)
    group = Group(codes(1, 64, 20, 20), weights(64, 64, 1, 1), y_scale=0.05)
    spread(group)
    multiplier, offset = (c[:, None, None] for c in group.constants())
    acc = group.sums()
    fused = (acc.astype(np.float64) * multiplier + offset).astype(np.float32)
    apart = (acc.astype(np.float32) * multiplier + offset).astype(np.float32)
    assert (fused != apart).mean() > 0.05  # the case can tell the two apart
    group.y_scale = None
    group.offset = torch.from_numpy(rng.standard_normal(64))
    check(group)


def test_the_skip_enters_with_one_rounding() -> None:
    group = Group(codes(1, 16, 20, 20), weights(16, 16, 1, 1), y_scale=None)
    spread(group)
    group.skip, group.skip_scale = codes(1, 16, 20, 20, seed=3), 0.0371
    check(group)
    skip = (group.skip.numpy().astype(np.float32) - np.float32(128)) * np.float32(group.skip_scale)
    group.skip = None
    apart = group.expected() + skip
    group.skip = codes(1, 16, 20, 20, seed=3)
    assert (apart != group.run().numpy()).mean() > 0.05  # two roundings would differ


@pytest.mark.parametrize("base", [CONV2D, CONV_TRANSPOSE2D])
@pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("shape", [(2, 3, 6, 7), (2, 3, 1, 7), (1, 8, 3, 3)])
def test_the_result_keeps_the_memory_format(
    base: int, format: torch.memory_format, shape: tuple[int, ...]
) -> None:
    x = codes(*shape).contiguous(memory_format=format)
    w = weights(shape[1], 5, 1, 1) if base == CONV_TRANSPOSE2D else weights(5, shape[1], 1, 1)
    actual = check(spread(Group(x, w, base=base)))
    assert actual.stride() == torch.empty(actual.shape, memory_format=format).stride()


@pytest.mark.parametrize("shape", [(2, 1, 6, 7), (2, 8, 1, 1), (1, 1, 1, 1)])
@pytest.mark.parametrize("outputs", [1, 5])
def test_one_channel_or_one_pixel_lies_in_both_formats(
    shape: tuple[int, ...], outputs: int
) -> None:
    x = torch.empty(shape, dtype=torch.uint8, memory_format=torch.channels_last)
    group = spread(Group(x.copy_(codes(*shape)), weights(outputs, shape[1], 1, 1)))
    expected = check(group)
    group.x = group.x.clone(memory_format=torch.contiguous_format)
    assert torch.equal(check(group), expected)


def test_views_need_not_be_contiguous() -> None:
    wide = codes(2, 20, 12, 14)
    every_other = Group(wide[:, ::2, 1::2, ::3], weights(6, 3, 3, 10).permute(0, 3, 1, 2))
    spread(every_other)
    every_other.skip = codes(2, 4, 3, 6).permute(0, 3, 1, 2)
    check(every_other)
    group = Group(codes(7, 5).t(), weights(7, 9).t(), base=LINEAR)
    spread(group)
    group.w_scale = torch.stack([group.w_scale, group.w_scale], 1)[:, 1]
    group.factor = group.factor.flip(0)[::1]
    check(group)


@pytest.mark.parametrize(
    "skip",
    [
        (1,),
        (4, 1, 1),
        (1, 4, 1, 1),
        (2, 1, 5, 6),
        (2, 4, 5, 6),
        (2, 4, 1, 6),
        (6,),
        (3, 2, 4, 5, 6),
    ],
)
@pytest.mark.parametrize("y_scale", [0.0625, None])
def test_skips_broadcast(skip: tuple[int, ...], y_scale: float | None) -> None:
    group = spread(Group(codes(2, 3, 7, 8), weights(4, 3, 3, 3), y_scale=y_scale, activation=RELU))
    group.skip = codes(*skip)
    assert check(group).shape == torch.broadcast_shapes((2, 4, 5, 6), skip)


@pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last])
def test_a_skip_may_be_larger_than_the_output(format: torch.memory_format) -> None:
    x = codes(1, 3, 1, 6).contiguous(memory_format=format)
    group = spread(Group(x, weights(4, 3, 1, 1), activation=RELU6))
    group.skip = codes(2, 4, 5, 6)
    assert check(group).is_contiguous(memory_format=format)
    group = spread(Group(codes(3), weights(4, 3), base=LINEAR, activation=RELU))
    group.skip = codes(5, 2, 4)
    check(group)


def test_an_unbatched_image_is_a_batch_of_one() -> None:
    for base, w in ((CONV2D, weights(4, 3, 3, 3)), (CONV_TRANSPOSE2D, weights(3, 4, 3, 3))):
        group = spread(Group(codes(3, 7, 8), w, base=base))
        one = check(group)
        group.x = group.x[None]
        assert torch.equal(one[None], check(group))


@pytest.mark.parametrize("base", [CONV2D, CONV_TRANSPOSE2D, LINEAR])
@pytest.mark.parametrize("y_scale", [0.0625, None])
def test_an_empty_batch_gives_an_empty_result(base: int, y_scale: float | None) -> None:
    if base == LINEAR:
        group = Group(codes(0, 3), weights(4, 3), base=base, y_scale=y_scale)
        expected = (0, 4)
    else:
        w = weights(3, 4, 3, 3) if base == CONV_TRANSPOSE2D else weights(4, 3, 3, 3)
        group = Group(codes(0, 3, 5, 5), w, base=base, y_scale=y_scale)
        expected = (0, 4, 7, 7) if base == CONV_TRANSPOSE2D else (0, 4, 3, 3)
    assert tuple(group.run().shape) == expected
    group.skip = codes(*expected[1:])
    assert tuple(group.run().shape) == expected


def test_the_dead_outputs_of_a_wide_stride_are_the_offset() -> None:
    # Stride 5 with kernel 2: three of five output rows meet no weight.
    group = Group(codes(1, 3, 4, 4), weights(3, 2, 2, 2), base=CONV_TRANSPOSE2D, stride=(5, 5))
    spread(group)
    actual = check(group)
    dead = actual[0, :, 2::5, 2::5]
    for channel in range(2):
        value = float(group.constants()[1][channel]) + group.y_zero
        assert dead[channel].unique().tolist() == [min(max(round(value), 0), 255)]


def test_an_asymmetric_padding_is_a_padding_of_zeros() -> None:
    group = spread(Group(codes(2, 3, 6, 6), weights(4, 3, 3, 3), padding=(2, 0, 1, 3), x_zero=77))
    padded = Group(F.pad(group.x, (0, 3, 2, 1), value=77), group.w, x_zero=77)
    padded.w_scale, padded.factor, padded.offset = group.w_scale, group.factor, group.offset
    assert torch.equal(check(group), check(padded))


def test_zero_and_negative_factors_are_harmless() -> None:
    group = spread(Group(codes(2, 8, 5, 5), weights(4, 8, 3, 3), activation=RELU))
    group.factor = torch.tensor([0.0, -1.0, -0.0, 1e-30], dtype=torch.float64)
    group.w_scale = torch.tensor([1e-3, 1e-3, 1.1920929e-07, 1e30])
    check(group)


def test_sums_beyond_the_grid_saturate() -> None:
    group = Group(codes(1, 8, 5, 5), weights(2, 8, 3, 3), y_scale=1e-30)
    group.factor = torch.tensor([1.0, -1.0], dtype=torch.float64)
    group.offset = torch.zeros(2, dtype=torch.float64)
    assert set(check(group).unique().tolist()) <= {0, 128, 255}


@pytest.mark.parametrize("base", [CONV2D, LINEAR])
def test_a_float_result_needs_no_grad(base: int) -> None:
    w = weights(4, 3) if base == LINEAR else weights(4, 3, 1, 1)
    x = codes(2, 3) if base == LINEAR else codes(2, 3, 4, 4)
    group = spread(Group(x, w, base=base, y_scale=None))
    group.factor.requires_grad_()
    group.w_scale.requires_grad_()
    with torch.enable_grad():
        assert not group.run().requires_grad


def test_one_thread_and_many_give_the_same_bits() -> None:
    groups = [random_group(seed) for seed in range(40)]
    many = [group.run() for group in groups]
    torch.set_num_threads(1)
    for group, expected in zip(groups, many, strict=True):
        assert torch.equal(group.run(), expected)


@pytest.mark.parametrize("outputs", [1000, 257])
def test_few_rows_are_shared_among_threads_by_column(outputs: int) -> None:
    check(spread(Group(codes(1, 300), weights(outputs, 300), base=LINEAR)))


@pytest.mark.parametrize("base", [CONV2D, CONV_TRANSPOSE2D])
@pytest.mark.parametrize(
    ("x", "outputs", "groups"),
    [
        ((2, 64, 28, 28), 130, 1),
        ((1, 300, 7, 9), 70, 1),
        ((2, 128, 14, 14), 128, 2),
        ((2, 128, 14, 14), 128, 32),
        ((2, 96, 28, 28), 96, 96),
    ],
)
@pytest.mark.parametrize("stride", [1, 2])
def test_layers_of_many_tiles_are_exact(
    base: int, x: tuple[int, ...], outputs: int, groups: int, stride: int
) -> None:
    shape = (x[1], outputs) if base == CONV_TRANSPOSE2D else (outputs, x[1])
    w = weights(shape[0], shape[1] // groups, 3, 3)
    group = Group(codes(*x).contiguous(memory_format=torch.channels_last), w, base=base)
    group.groups, group.stride, group.padding = groups, (stride, stride), (1, 1)
    group.__post_init__()
    check(spread(group))
