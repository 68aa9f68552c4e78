"""Results do not depend on how many threads share the work: no races, no seams between shares."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from integer_reference import (
    CONV2D,
    CONV_TRANSPOSE2D,
    LINEAR,
    RELU,
    RELU6,
    Group,
    codes,
    point,
    scalar,
    weights,
)
from torch import Tensor

ops = torch.ops.horizon
Run = Callable[[], object]
A, B, Y = (scalar(0.03), point(128)), (scalar(0.05), point(117)), (scalar(0.06), point(128))
#: Odd in every dimension, and more codes than seven threads take one share of.
IMAGE = (3, 37, 53, 45)
LAYOUTS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def group(x: Tensor, w: Tensor, **options: object) -> Run:
    arguments = Group(x, w, **options).arguments()
    return lambda: ops.quantized_conv(*arguments)


def on_images(layout: torch.memory_format) -> dict[str, Run]:
    """Every op that takes an image's codes, by name."""

    def image(*shape: int) -> Tensor:
        return codes(*shape).contiguous(memory_format=layout)

    x, y, row = image(*IMAGE), image(*IMAGE), codes(IMAGE[1], 1, 1)
    factor = torch.linspace(-1, 1, IMAGE[1], dtype=torch.float64)
    single = torch.ones(1, dtype=torch.float64)
    wide = ([5, 3], [1, 2], [2, 1])
    table = torch.randperm(256).to(torch.uint8)
    floats = torch.randn(IMAGE).contiguous(memory_format=layout)
    small = image(3, 24, 21, 19)
    return {
        "add": lambda: ops.quantized_add(x, *A, y, *B, *Y, RELU, -1.0),
        "add, broadcast": lambda: ops.quantized_add(row, *A, y, *B, *Y, 0, 1.0),
        "mul": lambda: ops.quantized_mul(x, *A, y, *B, *Y, RELU6),
        "mul, broadcast": lambda: ops.quantized_mul(x, *A, y[:, :, :1, :1], *B, *Y, 0),
        "affine": lambda: ops.quantized_affine(x, *A, single, single, *Y, RELU6),
        "affine, each channel": lambda: ops.quantized_affine(x, *A, factor, single, *Y, RELU),
        "affine_scalar": lambda: ops.quantized_affine_scalar(x, *A, -0.4, 0.2, *Y, 0),
        "cat": lambda: ops.quantized_cat([x, y[:, :5]], [A[0], B[0]], [A[1], B[1]], 1, *B),
        "cat of images": lambda: ops.quantized_cat([x, y], [A[0], B[0]], [A[1], B[1]], 0, *B),
        "cat of rows": lambda: ops.quantized_cat([x, y], [A[0], B[0]], [A[1], B[1]], 2, *B),
        "lookup": lambda: ops.quantized_lookup(x, table),
        "max_pool2d": lambda: ops.quantized_max_pool2d(x, *wide, [1, 2], True),
        "avg_pool2d": lambda: ops.quantized_avg_pool2d(x, *A, *wide, True, False, None, *Y),
        "adaptive_avg_pool2d": lambda: ops.quantized_adaptive_avg_pool2d(x, *A, [7, 20], *Y),
        "global pool": lambda: ops.quantized_adaptive_avg_pool2d(x, *A, [1, 1], *Y),
        "mean of pixels": lambda: ops.quantized_mean(x, *A, [2, 3], False, *Y),
        "mean of channels": lambda: ops.quantized_mean(x, *A, [1], True, *Y),
        "quantize": lambda: ops.quantize(floats, *Y),
        "dequantize": lambda: ops.dequantize(x, *A, None),
        "conv2d": group(small, weights(37, 24, 3, 3), padding=(1, 1), activation=RELU),
        "conv2d, skip": group(
            small, weights(37, 24, 1, 1), skip=codes(3, 37, 21, 19), activation=RELU6
        ),
        "conv2d, float": group(small, weights(37, 24, 3, 3), stride=(2, 2), y_scale=None),
        "depthwise": group(x, weights(37, 1, 3, 3), padding=(1, 1), groups=37),
        "depthwise, few rows": group(image(1, 203, 3, 5), weights(203, 1, 3, 3), groups=203),
        "depthwise, skip": group(
            small, weights(24, 1, 5, 5), padding=(2, 2), groups=24, skip=codes(3, 24, 21, 19)
        ),
        "small groups": group(small, weights(36, 2, 3, 3), padding=(1, 1), groups=12),
        "large groups": group(small, weights(40, 12, 3, 3), stride=(2, 1), groups=2),
        "conv_transpose2d": group(
            small, weights(24, 19, 3, 3), base=CONV_TRANSPOSE2D, stride=(2, 3)
        ),
        "conv_transpose2d, groups": group(
            small, weights(24, 3, 4, 4), base=CONV_TRANSPOSE2D, stride=(2, 2), groups=8
        ),
    }


def without_layout() -> dict[str, Run]:
    """Every other op that shares its work, by name."""
    floats = torch.randn(257, 1031)
    state = [scalar(0.0), scalar(0.0), torch.tensor(0), scalar(1.0), point(0)]
    scales = torch.linspace(0.01, 0.1, 257)
    points = torch.arange(257, dtype=torch.int32) % 100
    weight_scales = torch.linspace(0.01, 0.1, 66)
    conv, transposed = torch.randn(67, 31, 5, 3), torch.randn(62, 33, 3, 5)

    def observed() -> list[Tensor]:
        own = [t.clone() for t in state]
        return [*ops.quantize_activation(floats, *own, 2, 0, 0.01, True, True, False), *own]

    return {
        "linear": group(codes(5, 300), weights(411, 300), base=LINEAR),
        "linear, many rows": group(codes(301, 77), weights(13, 77), base=LINEAR, y_scale=None),
        "fake_quantize_per_tensor": lambda: ops.fake_quantize_per_tensor(floats, *A, 0, 255),
        "fake_quantize_per_channel": lambda: ops.fake_quantize_per_channel(
            floats, scales, points, 0, 0, 255
        ),
        "quantize_activation": observed,
        "weight_scale": lambda: ops.weight_scale(transposed, CONV_TRANSPOSE2D, 2),
        "fake_quantize_weight": lambda: ops.fake_quantize_weight(conv, CONV2D, 1),
        "quantize_weight": lambda: ops.quantize_weight(transposed, weight_scales, 1, 2),
        "pack_weight": lambda: ops.pack_weight(weights(67, 31, 3, 3), 0, [1, 1], [1, 1], 1),
    }


def check(run: Run) -> None:
    torch.set_num_threads(1)
    expected = run()
    for threads in (2, 3, 7):
        torch.set_num_threads(threads)
        for _ in range(2):
            actual = run()
            torch.testing.assert_close(actual, expected, rtol=0, atol=0, msg=f"{threads} threads")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", list(on_images(torch.contiguous_format)))
def test_ops_on_images_give_the_same_bits_with_any_number_of_threads(
    name: str, layout: str
) -> None:
    check(on_images(LAYOUTS[layout])[name])


@pytest.mark.parametrize("name", list(without_layout()))
def test_other_ops_give_the_same_bits_with_any_number_of_threads(name: str) -> None:
    check(without_layout()[name])


def test_an_error_inside_a_share_reaches_the_caller_and_the_next_call_works() -> None:
    x = torch.zeros(7 * 40_000)
    x[-1] = float("nan")
    for threads in (1, 2, 3, 7):
        torch.set_num_threads(threads)
        with pytest.raises(ValueError, match="'x' must be free of NaN, got nan"):
            ops.quantize(x, *Y)
        assert torch.equal(ops.quantize(x[:-1], *Y), torch.full((len(x) - 1,), 128).byte())
