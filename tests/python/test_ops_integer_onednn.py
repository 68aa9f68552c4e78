"""An independent check: oneDNN's fused epilogue on VNNI is the specification of the arithmetic.

Its weight scales are set to M, its bias to B, and the scales of source and destination to 1.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from integer_reference import NONE, RELU, RELU6, Group, codes, spread, weights

import horizon_plugin._C as native

pytestmark = pytest.mark.skipif(
    native.cpu_capability() not in ("avx512_vnni", "avx512_amx"),
    reason="without VNNI, oneDNN's 16-bit pair sums saturate",
)

NAMES = {NONE: "none", RELU: "relu", RELU6: "hardtanh"}


def onednn(group: Group) -> torch.Tensor:
    multiplier, offset = (torch.from_numpy(c) for c in group.constants())
    places = list(group.stride), list(group.padding), list(group.dilation), group.groups
    packed = torch.ops.onednn.qconv_prepack(
        group.w, multiplier, 1.0, group.x_zero, *places, list(group.x.shape)
    )
    x = group.x.contiguous(memory_format=torch.channels_last)
    head = x, 1.0, group.x_zero, packed, multiplier, torch.zeros(group.out_channels).int()
    tail = 1.0, group.y_zero, torch.uint8
    bounds = [0.0, float(np.float32(6.0 / group.y_scale))] if group.activation == RELU6 else []
    if group.skip is None:
        return torch.ops.onednn.qconv2d_pointwise(
            *head, offset, *places, *tail, NAMES[group.activation], bounds, ""
        )
    ratio = float(np.float32(group.skip_scale / group.y_scale))
    accumulator = group.skip.contiguous(memory_format=torch.channels_last).clone()
    return torch.ops.onednn.qconv2d_pointwise.binary(
        *head,
        accumulator,
        offset,
        *places,
        *tail,
        ratio,
        group.skip_zero,
        "sum",
        1.0,
        NAMES[group.activation],
        bounds,
        "",
    )


LAYERS = {
    "3x3": ((2, 16, 9, 11), (24, 16, 3, 3), {"padding": (1, 1)}),
    "1x1": ((2, 32, 7, 7), (16, 32, 1, 1), {}),
    "strided": ((2, 8, 12, 12), (16, 8, 3, 3), {"padding": (1, 1), "stride": (2, 2)}),
    "odd channels": ((2, 17, 6, 6), (7, 17, 3, 3), {"padding": (1, 1)}),
    "stem": ((1, 3, 20, 20), (8, 3, 7, 7), {"padding": (3, 3), "stride": (2, 2)}),
    "depthwise": ((2, 32, 8, 8), (32, 1, 3, 3), {"padding": (1, 1), "groups": 32}),
    "groups": ((2, 16, 8, 8), (16, 4, 3, 3), {"padding": (1, 1), "groups": 4}),
    "dilated": ((1, 16, 10, 10), (16, 16, 3, 3), {"padding": (2, 2), "dilation": (2, 2)}),
}


def agree(group: Group) -> None:
    ours, theirs = group.run(), onednn(group)
    assert theirs.unique().numel() > 16
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("activation", [NONE, RELU, RELU6])
@pytest.mark.parametrize("zeros", [(128, 128), (0, 0), (77, 33)])
def test_a_convolution_has_the_bits_of_onednn(
    layer: str, activation: int, zeros: tuple[int, int]
) -> None:
    x, w, options = LAYERS[layer]
    group = Group(codes(*x), weights(*w), x_zero=zeros[0], activation=activation, **options)
    group.y_zero = zeros[1]
    agree(spread(group))


@pytest.mark.parametrize("layer", ["3x3", "1x1", "odd channels", "stem"])
@pytest.mark.parametrize("activation", [NONE, RELU])
@pytest.mark.parametrize("zeros", [(128, 128, 128), (0, 5, 40)])
def test_a_residual_group_has_the_bits_of_onednn(
    layer: str, activation: int, zeros: tuple[int, int, int]
) -> None:
    x, w, options = LAYERS[layer]
    group = Group(codes(*x), weights(*w), x_zero=zeros[0], activation=activation, **options)
    group.y_zero, group.skip_zero = zeros[1], zeros[2]
    spread(group)
    group.skip, group.skip_scale = codes(*group.sums().shape, seed=5), 0.0231
    agree(group)


# oneDNN has no sum with hardtanh.
@pytest.mark.parametrize(
    ("activation", "with_skip"),
    [(NONE, False), (RELU, False), (RELU6, False), (NONE, True), (RELU, True)],
)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_ties_go_where_onednn_sends_them(activation: int, with_skip: bool, sign: float) -> None:
    group = Group(codes(2, 16, 9, 9), weights(8, 16, 3, 3) // 16, activation=activation)
    group.x_scale, group.y_scale = 2.0**-6, 2.0**-5
    group.w_scale = torch.full((8,), 2.0**-7)
    group.factor = torch.full((8,), sign, dtype=torch.float64)
    group.offset = (torch.arange(8, dtype=torch.float64) - 3.5) * 2.0**-5
    if with_skip:
        group.skip, group.skip_scale = codes(2, 8, 7, 7), 2.0**-6
    agree(group)


def test_extreme_codes_agree() -> None:
    x = torch.full((1, 64, 6, 6), 255, dtype=torch.uint8)
    w = torch.full((32, 64, 3, 3), 127, dtype=torch.int8)
    w[1::2] = -127
    group = Group(x, w, x_zero=0)
    group.w_scale = torch.full((32,), 100 / (64 * 9 * 255 * 127) * group.y_scale / group.x_scale)
    group.factor = torch.linspace(0.1, 1.2, 32, dtype=torch.float64)
    group.offset = torch.zeros(32, dtype=torch.float64)
    agree(group)
