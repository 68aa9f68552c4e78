"""Packed weights: one layout for all machines, the bits of natural ones, errors by name."""

from __future__ import annotations

import hashlib
import io
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from integer_reference import CONV2D, CONV_TRANSPOSE2D, LINEAR, Group, codes, random_group, weights

ops = torch.ops.horizon


def layout(group: Group) -> tuple[int, list[int], list[int], int]:
    return group.base, list(group.stride), list(group.dilation), group.groups


def run_packed(group: Group) -> torch.Tensor:
    arguments = list(group.arguments())
    packed = ops.pack_weight(group.w, *layout(group))
    arguments[3:4] = [packed, list(group.w.shape)]
    return ops.quantized_conv_packed(*arguments)


@pytest.mark.parametrize("first", range(0, 120, 40))
def test_a_packed_weight_gives_the_bits_of_the_natural_one(first: int) -> None:
    for seed in range(first, first + 40):
        group = random_group(seed)
        assert torch.equal(run_packed(group), group.run())


SHAPES = [
    (CONV2D, (5, 3, 3, 3), (1, 1), (1, 1), 1),
    (CONV2D, (64, 17, 1, 7), (2, 2), (1, 1), 1),
    (CONV2D, (70, 1, 3, 3), (1, 1), (1, 1), 70),
    (CONV2D, (12, 3, 3, 2), (1, 1), (2, 1), 4),
    (CONV2D, (64, 5, 2, 2), (1, 1), (1, 1), 2),
    (CONV_TRANSPOSE2D, (6, 2, 4, 3), (2, 3), (1, 1), 3),
    (CONV_TRANSPOSE2D, (6, 20, 5, 5), (4, 2), (2, 3), 1),
    (CONV_TRANSPOSE2D, (33, 1, 3, 3), (2, 2), (1, 1), 33),
    (CONV_TRANSPOSE2D, (4, 3, 2, 2), (1000000, 5), (1, 1), 1),
    (LINEAR, (10, 31), (1, 1), (1, 1), 1),
]


@pytest.mark.parametrize(("base", "shape", "stride", "dilation", "groups"), SHAPES)
def test_unpacking_undoes_packing(base, shape, stride, dilation, groups) -> None:
    w = weights(*shape)
    packed = ops.pack_weight(w, base, stride, dilation, groups)
    assert packed.dtype == torch.int8
    assert packed.is_contiguous()
    assert torch.equal(ops.unpack_weight(packed, shape, base, stride, dilation, groups), w)
    turned = torch.cat([w, w], -1)[..., : shape[-1]]  # a view
    assert torch.equal(ops.pack_weight(turned, base, stride, dilation, groups), packed)


def test_a_packed_weight_is_about_as_large_as_the_weight() -> None:
    # 64 sums of 4 bytes and 1024 of slack.
    packed = ops.pack_weight(weights(64, 64, 3, 3), CONV2D, [1, 1], [1, 1], 1)
    assert packed.numel() == 64 * 64 * 9 + 64 * 4 + 1024
    # Depthwise rows of three taps fill words of four.
    packed = ops.pack_weight(weights(64, 1, 3, 3), CONV2D, [1, 1], [1, 1], 64)
    assert packed.numel() == 64 * 12 + 64 * 4 + 1024


def test_the_layout_is_part_of_the_format_of_files() -> None:
    total = hashlib.sha256()
    for base, shape, stride, dilation, groups in SHAPES:
        count = math.prod(shape)
        w = (torch.arange(count) * 37 % 255 - 127).to(torch.int8).view(shape)
        total.update(ops.pack_weight(w, base, stride, dilation, groups).numpy().tobytes())
    assert total.hexdigest() == "e0d79a65df310d25ded8230b8f257d3a0fbc12e17d733a1f75425298d4cfb747"


def packed_arguments() -> dict[str, object]:
    w = weights(4, 4, 3, 3)
    return {
        "packed": ops.pack_weight(w, CONV2D, [1, 1], [1, 1], 1),
        "weight_size": [4, 4, 3, 3],
        "base": CONV2D,
        "stride": [1, 1],
        "dilation": [1, 1],
        "groups": 1,
    }


ERRORS = [
    (ValueError, r"'packed' must be of shape \[1664\]", {"packed": torch.zeros(7).char()}),
    (ValueError, r"'packed' must be of shape \[1664\]", {"packed": torch.zeros(8, 232).char()}),
    (TypeError, "'packed' must be int8, got uint8", {"packed": codes(1664)}),
    (ValueError, "'weight_size' must be positive", {"weight_size": [4, 4, 3, 0]}),
    (ValueError, "'weight_size' must be positive", {"weight_size": [-4, 4, 3, 3]}),
    (ValueError, "'weight_size' must be 4-dimensional", {"weight_size": [4, 4]}),
    (ValueError, r"'weight_size' must be of at most 2\^40", {"weight_size": [2**40, 2, 1, 1]}),
    (ValueError, "'weight_size' must be of at most 65793", {"weight_size": [1, 2**30, 9, 9]}),
    (ValueError, "'weight_size' must be of at most 65793", {"weight_size": [1, 1, 1, 2**33]}),
    (ValueError, "'base' must be 0", {"base": 3}),
    (ValueError, "'groups' must be at least 1", {"groups": 0}),
    (ValueError, "'weight_size' must be divisible into 3 groups", {"groups": 3}),
    (ValueError, "'stride' must be of 2 entries", {"base": CONV_TRANSPOSE2D, "stride": [1]}),
    (ValueError, "'dilation' must be at least 1", {"base": CONV_TRANSPOSE2D, "dilation": [0, 1]}),
]


@pytest.mark.parametrize(("kind", "text", "changes"), ERRORS)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_errors_name_the_argument(kind, text, changes, device) -> None:
    values = packed_arguments() | changes
    values["packed"] = values["packed"].to(device)
    with pytest.raises(kind, match="unpack_weight: " + text):
        ops.unpack_weight(*values.values())


def test_the_packed_convolution_refuses_what_the_natural_one_refuses() -> None:
    group = Group(codes(1, 4, 6, 6), weights(4, 4, 3, 3))
    arguments = list(group.arguments())
    packed = ops.pack_weight(group.w, *layout(group))
    arguments[3:4] = [packed[:-1], [4, 4, 3, 3]]
    with pytest.raises(ValueError, match="quantized_conv_packed: 'packed' must be of shape"):
        ops.quantized_conv_packed(*arguments)
    arguments[3:5] = [packed, [4, 4, 3, 3]]
    arguments[0] = codes(1, 5, 6, 6)
    with pytest.raises(ValueError, match="quantized_conv_packed: 'input' must be of 4 channels"):
        ops.quantized_conv_packed(*arguments)


def test_any_bytes_of_the_right_size_are_harmless() -> None:
    for seed in range(20):
        group = random_group(seed)
        size = ops.pack_weight(group.w, *layout(group)).numel()
        arguments = list(group.arguments())
        arguments[3:4] = [weights(size, seed=seed), list(group.w.shape)]
        assert ops.quantized_conv_packed(*arguments).shape == group.run().shape


@pytest.mark.parametrize("base", [CONV2D, CONV_TRANSPOSE2D, LINEAR])
@pytest.mark.parametrize("op", ["pack_weight", "unpack_weight", "quantized_conv_packed"])
def test_the_operators_pass_opcheck(base: int, op: str) -> None:
    if base == LINEAR:
        group = Group(codes(2, 6), weights(4, 6), base=base)
    elif base == CONV2D:
        group = Group(codes(2, 6, 7, 8), weights(4, 3, 3, 3), groups=2)
    else:
        group = Group(codes(2, 6, 4, 5), weights(6, 2, 3, 3), base=base, groups=3, stride=(2, 2))
    packed = ops.pack_weight(group.w, *layout(group))
    arguments = list(group.arguments())
    arguments[3:4] = [packed, list(group.w.shape)]
    cases = {
        "pack_weight": (group.w, *layout(group)),
        "unpack_weight": (packed, list(group.w.shape), *layout(group)),
        "quantized_conv_packed": tuple(arguments),
    }
    torch.library.opcheck(getattr(ops, op).default, cases[op])


def test_a_packed_weight_survives_a_file() -> None:
    group = random_group(3)
    file = io.BytesIO()
    packed = ops.pack_weight(group.w, *layout(group))
    torch.save(packed, file)
    file.seek(0)
    assert torch.equal(torch.load(file), packed)


def test_the_log_names_the_kernel_of_each_kind_of_layer_once() -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from integer_reference import Group, codes, weights\n"
        "import horizon_plugin\n"
        "for _ in range(2):\n"
        "    Group(codes(1, 4, 6, 6), weights(4, 4, 3, 3)).run()\n"
        "    Group(codes(1, 32, 6, 6), weights(32, 1, 3, 3), groups=32).run()\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script, str(Path(__file__).parent)],
        env=os.environ | {"HORIZON_LOG": "1", "HORIZON_CPU_CAPABILITY": "generic"},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line for line in run.stderr.splitlines() if line.startswith("horizon: ")]
    assert lines == [
        "horizon: quantized_conv base 0: 1x4x6x6 to 4 channels, 3x3 taps, stride 1x1, groups 1: "
        "generic",
        "horizon: quantized_conv base 0: 1x32x6x6 to 32 channels, 3x3 taps, stride 1x1, groups 32: "
        "depthwise",
    ]
