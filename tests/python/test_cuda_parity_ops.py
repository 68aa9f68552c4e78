"""Every operator but `fused` on the GPU against the CPU: integers to the bit, floats as well."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from parity import DEVICE, assert_equal, exact_products, needs_device, needs_gpu, on_both  # noqa: F401
from torch import Tensor

pytestmark = needs_device
ops = torch.ops.horizon

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
LAYOUTS = ["contiguous", "channels last", "strided", "empty"]
CONV, TRANSPOSED, LINEAR = 0, 1, 2


def grid(scale: float, zero_point: int) -> tuple[Tensor, Tensor]:
    return torch.tensor(scale), torch.tensor(zero_point, dtype=torch.int32)


A, B, Y = grid(0.037, 128), grid(0.0213, 5), grid(0.041, 119)


def laid_out(x: Tensor, layout: str) -> Tensor:
    if layout == "channels last":
        return x.contiguous(memory_format=torch.channels_last)
    if layout == "strided":
        return x.repeat_interleave(2, -1)[..., ::2]
    return x[:0] if layout == "empty" else x


def codes(*shape: int, layout: str = "contiguous") -> Tensor:
    return laid_out(torch.randint(0, 256, shape, dtype=torch.uint8), layout)


def floats(*shape: int, dtype: torch.dtype = torch.float32, layout: str = "contiguous") -> Tensor:
    return laid_out((torch.randn(shape) * 3).to(dtype), layout)


def check(op: Any, *args: Any, **kwargs: Any) -> None:
    found, expected = on_both(op, *args, **kwargs)
    assert_equal(found, expected)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("activation", [0, 1, 2])
def test_sums_and_products_of_codes_are_equal(layout: str, activation: int) -> None:
    a = codes(3, 17, 9, 7, layout=layout)
    for b in (codes(3, 17, 9, 7, layout=layout), codes(17, 1, 1), codes(1)):
        check(ops.quantized_add, a, *A, b, *B, *Y, activation, 1.0)
        check(ops.quantized_add, b, *B, a, *A, *Y, activation, -1.0)
        check(ops.quantized_mul, a, *A, b, *B, *Y, activation)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_maps_of_codes_are_equal(layout: str) -> None:
    q = codes(3, 17, 9, 7, layout=layout)
    each = torch.randn(17, dtype=torch.float64)
    one = torch.tensor([0.7], dtype=torch.float64)
    for activation, (factor, offset) in itertools.product(
        (0, 1, 2), [(each, each), (one, each), (one, one)]
    ):
        check(ops.quantized_affine, q, *A, factor, offset, *Y, activation)
    check(ops.quantized_affine_scalar, q, *A, -0.4, 1.3, *Y, 2)
    check(ops.quantized_lookup, q, codes(256))
    check(ops.quantized_cat, [q, codes(*q.shape)], [A[0], B[0]], [A[1], B[1]], 1, *Y)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("channels", [1, 3, 16])
def test_pools_of_codes_are_equal(layout: str, channels: int) -> None:
    q = codes(3, channels, 9, 7, layout=layout)
    for kernel, stride, padding, ceil in [
        ([2], [], [0], False),
        ([3, 2], [2, 1], [1], True),
        ([9, 7], [], [0], False),
    ]:
        for include, divisor in itertools.product((False, True), (None, 5)):
            window = (kernel, stride, padding, ceil)
            check(ops.quantized_avg_pool2d, q, *A, *window, include, divisor, *Y)
        check(ops.quantized_max_pool2d, q, kernel, stride, padding, [1], ceil)
    for size in ([1, 1], [4, 5]):
        check(ops.quantized_adaptive_avg_pool2d, q, *A, size, *Y)
    for dim, keep in itertools.product(([2, 3], [1], [-1, 1]), (False, True)):
        check(ops.quantized_mean, q, *A, dim, keep, *Y)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_quantizing_and_dequantizing_are_equal(dtype: torch.dtype, layout: str) -> None:
    x = floats(3, 5, 9, 7, dtype=dtype, layout=layout)
    check(ops.quantize, x, *A)
    check(ops.dequantize, codes(3, 5, 9, 7, layout=layout), *A, dtype)
    check(ops.fake_quantize_per_tensor, x, *grid(0.05, 3), -128, 127)
    scales, zeros = torch.rand(5) * 0.1 + 0.01, torch.randint(-5, 5, (5,), dtype=torch.int32)
    check(ops.fake_quantize_per_channel, x, scales, zeros, 1, -128, 127)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_fake_quantization_keeps_nan_and_infinity(dtype: torch.dtype) -> None:
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.3], dtype=dtype)
    check(ops.fake_quantize_per_tensor, x, *grid(0.05, 3), -128, 127)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_gradients_of_fake_quantization_are_equal(dtype: torch.dtype) -> None:
    x = floats(3, 5, 9, 7, dtype=dtype).requires_grad_()
    g = floats(3, 5, 9, 7, dtype=dtype)

    def gradient(x: Tensor, g: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
        y = ops.fake_quantize_per_tensor(x, scale, zero_point, -128, 127)
        return torch.autograd.grad(y, x, g)[0]

    found, expected = on_both(gradient, x, g, *grid(0.01, 0))
    assert_equal(found, expected)


@pytest.mark.parametrize("preset", [0, 1, 2])
@pytest.mark.parametrize("observer", [0, 1, 2])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_observed_ranges_and_scales_are_equal(
    dtype: torch.dtype, observer: int, preset: int
) -> None:
    state = (torch.zeros(()), torch.zeros(()), torch.zeros((), dtype=torch.int64))

    def steps(xs: list[Tensor], state: tuple[Tensor, ...], scale: Tensor, zero: Tensor) -> Any:
        results = []
        for x in xs:
            settings = (preset, observer, 0.01, True, True, False)
            results.append(ops.quantize_activation(x, *state, scale, zero, *settings))
            ops.observe_(x, *state, scale, zero, preset, observer, 0.01, False)
        return results

    xs = [floats(n, 5, 9, 7, dtype=dtype) + 0.5 for n in (1, 3, 0, 40)]
    found, expected = on_both(steps, xs, state, torch.ones(()), torch.zeros((), dtype=torch.int32))
    assert_equal(found, expected)


@needs_gpu
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_batch_that_is_not_finite_moves_no_range_on_the_gpu(bad: float) -> None:
    state = [torch.tensor(v, device=DEVICE) for v in (-1.0, 2.0, 5, 0.1)]
    state.append(torch.tensor(0, dtype=torch.int32, device=DEVICE))
    before = [t.clone() for t in state]
    x = torch.tensor([0.3, bad, 7.0], device=DEVICE)
    ops.observe_(x, *state, 0, 0, 0.01, False)
    assert [torch.equal(a, b) for a, b in zip(state, before, strict=True)] == [True] * 5


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    ("base", "shape", "groups"),
    [(CONV, (6, 4, 3, 3), 2), (TRANSPOSED, (6, 4, 3, 2), 2), (LINEAR, (33, 65), 1)],
)
def test_weight_scales_and_codes_are_equal(
    base: int, shape: tuple[int, ...], groups: int, dtype: torch.dtype
) -> None:
    weight = floats(*shape, dtype=dtype)
    scale = ops.weight_scale(weight, base, groups)
    check(ops.weight_scale, weight, base, groups)
    check(ops.quantize_weight, weight, scale, base, groups)
    check(ops.fake_quantize_weight, weight, base, groups)


def test_folded_batch_norms_are_equal() -> None:
    bias, gamma, beta, mean = (torch.randn(37) for _ in range(4))
    for values in ((bias, gamma, beta, mean, torch.rand(37)), (None,) * 5, (bias,) + (None,) * 4):
        found, expected = on_both(ops.fold_batch_norm, *values, 1e-5, 37)
        if any(v is not None for v in values):
            assert_equal(found, expected)


CONVOLUTIONS = [
    # base, input, weight, stride, padding, dilation, output padding, groups
    (CONV, (2, 16, 9, 8), (24, 16, 3, 3), [1, 1], [1, 1], [1, 1], [0, 0], 1),
    (CONV, (2, 16, 9, 8), (32, 16, 1, 1), [1, 1], [0, 0], [1, 1], [0, 0], 1),
    (CONV, (2, 3, 15, 14), (8, 3, 7, 7), [2, 2], [3, 3], [1, 1], [0, 0], 1),
    (CONV, (2, 12, 9, 8), (12, 1, 3, 3), [1, 2], [2, 2], [2, 2], [0, 0], 12),
    (CONV, (2, 12, 9, 8), (8, 6, 3, 3), [1, 1], [0, 1, 2, 1], [1, 1], [0, 0], 2),
    (TRANSPOSED, (2, 12, 5, 6), (12, 10, 3, 3), [2, 2], [1, 1], [1, 1], [1, 1], 1),
    (TRANSPOSED, (2, 12, 5, 6), (12, 5, 2, 2), [2, 2], [0, 0], [1, 1], [0, 0], 2),
    (LINEAR, (5, 33), (17, 33), [], [], [], [], 1),
    (CONV, (0, 16, 9, 8), (24, 16, 3, 3), [1, 1], [1, 1], [1, 1], [0, 0], 1),
    (LINEAR, (0, 33), (17, 33), [], [], [], [], 1),
]


@pytest.mark.parametrize("layout", ["contiguous", "channels last"])
@pytest.mark.parametrize("high_precision", [False, True])
@pytest.mark.parametrize("case", CONVOLUTIONS, ids=lambda c: f"{c[0]}-{c[2]}-{c[7]}")
def test_integer_convolutions_are_equal(case: Any, high_precision: bool, layout: str) -> None:
    base, input_shape, weight_shape, stride, padding, dilation, output_padding, groups = case
    layout = layout if len(input_shape) == 4 else "contiguous"
    q = codes(*input_shape, layout=layout)
    weight = torch.randint(-127, 128, weight_shape, dtype=torch.int8)
    channels = weight_shape[1] * groups if base == TRANSPOSED else weight_shape[0]
    vectors = (
        torch.rand(channels) * 0.02 + 0.001,
        torch.randn(channels, dtype=torch.float64),
        torch.randn(channels, dtype=torch.float64),
    )
    geometry = (base, stride, padding, dilation, output_padding, groups)
    output = (None, None) if high_precision else grid(0.31, 101)
    no_skip = ops.quantized_conv(q, *A, weight, *vectors, None, None, None, *output, *geometry, 0)
    packed = ops.pack_weight(weight, base, stride, dilation, groups)
    check(ops.pack_weight, weight, base, stride, dilation, groups)
    check(ops.unpack_weight, packed, list(weight_shape), base, stride, dilation, groups)
    for activation, skip in itertools.product((0, 2), (None, codes(*no_skip.shape))):
        skips = (None, None, None) if skip is None else (skip, *B)
        check(ops.quantized_conv, q, *A, weight, *vectors, *skips, *output, *geometry, activation)
        check(
            ops.quantized_conv_packed,
            q,
            *A,
            packed,
            list(weight_shape),
            *vectors,
            *skips,
            *output,
            *geometry,
            activation,
        )


@needs_gpu
def test_tensors_on_two_devices_are_refused_by_name() -> None:
    there = [t.to(DEVICE) for t in A]
    q = codes(2, 3).to(DEVICE)
    for call in (
        lambda: ops.quantized_add(q, *there, codes(2, 3), *there, *there, 0, 1.0),
        lambda: ops.quantized_affine_scalar(q, *A, 1.0, 0.0, *there, 0),
        lambda: ops.quantized_lookup(q, codes(256)),
        lambda: ops.quantized_mean(q, *there, [1], False, *A),
        lambda: ops.quantize(floats(3).to(DEVICE), *A),
        lambda: ops.fake_quantize_per_tensor(floats(3).to(DEVICE), *A, 0, 255),
    ):
        with pytest.raises(ValueError, match="device"):
            call()
