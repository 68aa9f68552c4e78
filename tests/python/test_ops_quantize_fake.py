"""fake_quantize_per_tensor and fake_quantize_per_channel: values, gradients, layouts, errors."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from quantize_reference import FLOATS, LAYOUTS, bits, fake_quantize, laid_out

ops = torch.ops.horizon

INF, NAN = math.inf, math.nan
#: scale, zero_point, quant_min, quant_max
GRIDS = [(0.1, 0, -128, 127), (0.37, 100, 0, 255), (2.0**-7, -3, -8, 7), (3e4, 1, 0, 1)]


def qparams(scale: float, zero_point: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor(scale), torch.tensor(zero_point, dtype=torch.int32)


def per_tensor(x: torch.Tensor, scale: float, zero_point: int, lo: int, hi: int) -> torch.Tensor:
    return ops.fake_quantize_per_tensor(x, *qparams(scale, zero_point), lo, hi)


def spread(shape: tuple[int, ...], grid: tuple[float, int, int, int]) -> torch.Tensor:
    """Values in and around the range of a grid."""
    scale, zero_point, lo, hi = grid
    margin = 0.2 * (hi - lo) + 2
    codes = torch.rand(shape) * (hi - lo + 2 * margin) + lo - margin
    return (codes - zero_point) * scale


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("length", [0, 1, 7, 8, 15, 16, 17, 63, 64, 65, 127, 128, 1000, 70001])
def test_per_tensor_is_bit_equal_to_torch(grid: tuple[float, int, int, int], length: int) -> None:
    x = spread((length,), grid)
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    y = per_tensor(ours, *grid)
    expected = torch.fake_quantize_per_tensor_affine(theirs, *qparams(*grid[:2]), *grid[2:])
    assert torch.equal(bits(y), bits(expected))
    upstream = torch.randn(length)
    y.backward(upstream)
    expected.backward(upstream)
    assert torch.equal(ours.grad, theirs.grad)
    if length >= 1000:
        assert 0 < int((ours.grad == 0).sum()) < length


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_every_dtype_follows_the_formula(
    grid: tuple[float, int, int, int], dtype: torch.dtype
) -> None:
    special = torch.tensor([0.0, -0.0, INF, -INF, NAN, 1e-30, -1e-30, 6e4, -6e4])
    scale, zero_point, lo, hi = grid
    ties = (torch.arange(lo - 2, hi + 3)[:: max(1, (hi - lo) // 40)] + 0.5 - zero_point) * scale
    x = torch.cat([special, ties, spread((300,), grid)]).to(dtype).requires_grad_()
    y = per_tensor(x, *grid)
    y.backward(torch.ones_like(y))
    values, passes = fake_quantize(x.detach(), *grid)
    assert y.dtype == dtype
    finite = ~values.isnan()
    assert torch.equal(y.isnan(), values.isnan())
    assert torch.equal(y[finite], values[finite])
    assert torch.equal(x.grad, passes)


def test_float64_is_computed_in_double_and_rounds_to_what_torch_returns() -> None:
    # torch's per-tensor op rounds the product (q - z) * s to fp32, its per-channel op does not.
    x = (torch.randn(5000, dtype=torch.float64) * 9).requires_grad_()
    scale, zero_point = qparams(0.1, 3)
    y = ops.fake_quantize_per_tensor(x, scale, zero_point, -128, 127)
    theirs = torch.fake_quantize_per_tensor_affine(x.detach(), scale, zero_point, -128, 127)
    channel = torch.fake_quantize_per_channel_affine(
        x.detach()[None], scale[None], zero_point[None], 0, -128, 127
    )
    assert torch.equal(y.float(), theirs.float())
    assert torch.equal(y, channel[0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_equals_torch_on_the_cpu(dtype: torch.dtype) -> None:
    x = (torch.randn(4099) * 8).to(dtype)
    expected = torch.fake_quantize_per_tensor_affine(x, *qparams(0.1, 3), -128, 127)
    assert torch.equal(bits(per_tensor(x, 0.1, 3, -128, 127)), bits(expected))


def test_every_half_precision_number_is_converted_exactly() -> None:
    patterns = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    for dtype in (torch.float16, torch.bfloat16):
        x = patterns.view(dtype)
        # A step of 1 within +-2^22: integers stay, and every number is rounded to one.
        y = per_tensor(x, 1.0, 0, -(2**22), 2**22)
        expected = x.float().round().clamp(-(2.0**22), 2.0**22).to(dtype)
        assert torch.equal(y.isnan(), x.isnan())
        assert torch.equal(y[~x.isnan()], expected[~x.isnan()])
        # A step far below the subnormals of fp16: each of its numbers comes back.
        small = x[x.float().abs() < 2.0**-8]
        y = per_tensor(small, 2.0**-30, 0, -(2**22), 2**22)
        assert torch.equal(y, ((small.float() * 2.0**30).round() * 2.0**-30).to(dtype))
        assert dtype != torch.float16 or torch.equal(y, small)


def test_ties_go_to_even_and_the_ends_of_the_mask_are_inclusive() -> None:
    # Step 0.5, z = 1, codes 0..3: the code is rint(2 x) + 1.
    table = [
        # x, y, gradient
        (-0.75, -0.5, 0.0),  # 2x = -1.5 -> -2, code -1 saturates to 0
        (-0.74, -0.5, 1.0),  # -1.48 -> -1, code 0: the lower end passes
        (-0.25, 0.0, 1.0),  # -0.5 -> -0
        (0.25, 0.0, 1.0),  # 0.5 -> 0
        (0.75, 1.0, 1.0),  # 1.5 -> 2, code 3: the upper end passes
        (1.25, 1.0, 1.0),  # 2.5 -> 2
        (1.26, 1.0, 0.0),  # 2.52 -> 3, code 4 saturates to 3
        (INF, 1.0, 0.0),
        (-INF, -0.5, 0.0),
    ]
    x = torch.tensor([row[0] for row in table], requires_grad=True)
    y = per_tensor(x, 0.5, 1, 0, 3)
    y.backward(torch.ones(len(table)))
    assert y.tolist() == [row[1] for row in table]
    assert x.grad.tolist() == [row[2] for row in table]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_nan_stays_nan_and_gets_no_gradient(dtype: torch.dtype) -> None:
    x = torch.full((70,), 0.5, dtype=dtype)
    x[::3] = NAN
    x.requires_grad_()
    y = per_tensor(x, 0.1, 0, -128, 127)
    y.backward(torch.full((70,), NAN, dtype=dtype))
    nan = torch.arange(70) % 3 == 0
    assert torch.equal(y.isnan(), nan)
    assert torch.equal(x.grad == 0, nan), "0, even where the gradient that arrives is NaN"


@pytest.mark.parametrize("value", [2.0**31, 2.0**32, 2.0**63, 3e38])
def test_what_overflows_integers_saturates(value: float) -> None:
    for n in (1, 3, 64, 67):
        x = torch.full((n,), value)
        assert per_tensor(x, 1.0, 0, -128, 127).tolist() == [127.0] * n
        assert per_tensor(-x, 1.0, 0, -128, 127).tolist() == [-128.0] * n
        s, z = torch.ones(1), torch.zeros(1, dtype=torch.int32)
        channel = ops.fake_quantize_per_channel(x[None], s, z, 0, -128, 127)
        assert channel.flatten().tolist() == [127.0] * n


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_vector_body_and_tail_agree_for_every_length_and_alignment(dtype: torch.dtype) -> None:
    x = spread((200,), GRIDS[0]).to(dtype)
    whole, whole_mask = ops._fake_quantize_per_tensor_mask(x, *qparams(0.1, 0), -128, 127)
    passes = [whole_mask[i // 8].item() >> (i % 8) & 1 for i in range(200)]
    for start in (0, 1, 5):
        for length in range(1, 140):
            y, mask = ops._fake_quantize_per_tensor_mask(
                x[start : start + length], *qparams(0.1, 0), -128, 127
            )
            assert torch.equal(y, whole[start : start + length])
            got = [mask[i // 8].item() >> (i % 8) & 1 for i in range(8 * mask.numel())]
            expected = passes[start : start + length]
            assert got == expected + [0] * (len(got) - length)


def test_the_mask_takes_one_bit_an_element() -> None:
    # Elements 0, 1, 3 and 8 are in [-1, 1]: 1 + 2 + 8 = 11 in the first byte, 1 in the second.
    x = torch.tensor([0.0, 1.0, 5.0, -1.0, 9.0, 7.0, -3.0, 2.0, 0.3])
    _, mask = ops._fake_quantize_per_tensor_mask(x, *qparams(1.0, 0), -1, 1)
    assert mask.tolist() == [11, 1]

    saved: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    big = torch.randn(1000, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        y = per_tensor(big, 0.1, 0, -128, 127)
    y.sum().backward()
    assert [(t.dtype, t.numel()) for t in saved] == [(torch.uint8, 125)]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_layouts_change_nothing_and_are_kept(layout: str, dtype: torch.dtype) -> None:
    source = laid_out(spread((3, 5, 7, 9), GRIDS[1]).to(dtype), layout)
    x = source.detach().requires_grad_()
    plain = source.contiguous().detach().requires_grad_()
    y, expected = per_tensor(x, *GRIDS[1]), per_tensor(plain, *GRIDS[1])
    assert torch.equal(y, expected)
    assert y.stride() == torch.empty_like(x).stride()
    upstream = torch.randn(3, 5, 7, 9).to(dtype)
    y.backward(upstream)
    expected.backward(upstream)
    assert torch.equal(x.grad, plain.grad)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_gradient_may_arrive_in_any_layout(layout: str) -> None:
    x = spread((3, 5, 7, 9), GRIDS[0]).contiguous(memory_format=torch.channels_last)
    upstream = laid_out(torch.randn(3, 5, 7, 9), layout)
    leaf = x.detach().requires_grad_()
    (grad,) = torch.autograd.grad(per_tensor(leaf, *GRIDS[0]), leaf, upstream)
    _, passes = fake_quantize(x, *GRIDS[0])
    assert torch.equal(grad, upstream * passes)


def test_the_gradient_of_a_sum_is_expanded_and_works() -> None:
    x = torch.tensor([0.0, 100.0, -100.0, 1.0], requires_grad=True)
    per_tensor(x, 0.1, 0, -128, 127).sum().backward()
    assert x.grad.tolist() == [1.0, 0.0, 0.0, 1.0]


def test_scalars_and_empty_tensors() -> None:
    scalar = torch.tensor(0.26, requires_grad=True)
    y = per_tensor(scalar, 0.5, 0, -128, 127)
    y.backward()
    assert y.shape == () and y.item() == 0.5 and scalar.grad.item() == 1.0
    for shape in [(0,), (2, 0, 3), (0, 3, 4, 4)]:
        empty = torch.empty(shape, requires_grad=True)
        y = per_tensor(empty, 0.5, 0, -128, 127)
        y.sum().backward()
        assert y.shape == shape and empty.grad.shape == shape
        channels = shape[-1]
        y = ops.fake_quantize_per_channel(
            empty, torch.ones(channels), torch.zeros(channels, dtype=torch.int32), -1, -128, 127
        )
        assert y.shape == shape


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("axis", [0, 1, 2, 3, -1, -4])
@pytest.mark.parametrize("channels", [1, 3, 64, 70])
def test_per_channel_is_bit_equal_to_torch(layout: str, axis: int, channels: int) -> None:
    shape = [2, 3, 4, 5]
    shape[axis] = channels
    scale = torch.rand(channels) + 0.05
    zero_point = torch.randint(-8, 8, (channels,), dtype=torch.int32)
    source = laid_out(torch.randn(shape) * 8, layout)
    x = source.detach().requires_grad_()
    plain = source.contiguous().detach().requires_grad_()
    y = ops.fake_quantize_per_channel(x, scale, zero_point, axis, -16, 15)
    expected = torch.fake_quantize_per_channel_affine(plain, scale, zero_point, axis % 4, -16, 15)
    assert torch.equal(bits(y), bits(expected))
    assert y.stride() == torch.empty_like(x).stride()
    upstream = torch.randn(shape)
    y.backward(upstream)
    expected.backward(upstream)
    assert torch.equal(x.grad, plain.grad)
    assert 0 < int((x.grad == 0).sum()) < x.numel()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((6, 11, 3, 3), 0), ((6, 11, 3, 3), 1), ((40, 13), 1), ((2, 5, 100), 1), ((9, 3, 7), 1)],
    ids=str,
)
def test_per_channel_is_per_tensor_of_each_channel(
    shape: tuple[int, ...], axis: int, dtype: torch.dtype
) -> None:
    x = (torch.randn(shape) * 8).to(dtype)
    channels = shape[axis]
    scale = torch.rand(channels) + 0.05
    zero_point = torch.randint(-8, 8, (channels,), dtype=torch.int32)
    y = ops.fake_quantize_per_channel(x, scale, zero_point, axis, -16, 15)
    assert y.dtype == dtype
    for c in range(channels):
        one = ops.fake_quantize_per_tensor(x.select(axis, c), scale[c], zero_point[c], -16, 15)
        assert torch.equal(y.select(axis, c), one)


@pytest.mark.parametrize("zero_point", [0, 3, 123456789, -99999999])
@pytest.mark.parametrize("scale", [1.0, 0.3, 0.7])
def test_grids_as_wide_as_int32_are_bit_equal_to_torch(scale: float, zero_point: int) -> None:
    lo, hi = -(2**31), 2**31 - 1
    s, z = qparams(scale, zero_point)
    x = (torch.rand(1, 5000) - 0.5) * 2**31 * scale * 0.9
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    y = ops.fake_quantize_per_tensor(ours, s, z, lo, hi)
    expected = torch.fake_quantize_per_tensor_affine(theirs, s, z, lo, hi)
    assert torch.equal(y, expected)
    y.sum().backward()
    expected.sum().backward()
    assert torch.equal(ours.grad, theirs.grad)
    y = ops.fake_quantize_per_channel(x, s[None], z[None], 0, lo, hi)
    assert torch.equal(y, torch.fake_quantize_per_channel_affine(x, s[None], z[None], 0, lo, hi))


def test_a_second_derivative_is_masked_too() -> None:
    x = torch.tensor([0.0, 100.0], requires_grad=True)
    upstream = torch.tensor([2.0, 3.0], requires_grad=True)
    (first,) = torch.autograd.grad(per_tensor(x, 0.1, 0, -128, 127), x, upstream, create_graph=True)
    (second,) = torch.autograd.grad(first, upstream, torch.tensor([5.0, 7.0]))
    assert first.tolist() == [2.0, 0.0] and second.tolist() == [5.0, 0.0]


def test_qparams_may_have_one_element_and_other_dtypes() -> None:
    x = spread((100,), GRIDS[1])
    expected = per_tensor(x, *GRIDS[1])
    for shape in [(), (1,), (1, 1)]:
        for kind in (torch.float32, torch.float64):
            for integer in (torch.int32, torch.int64):
                # 0.37 in fp64 is rounded to fp32 first.
                s = torch.full(shape, 0.37, dtype=kind)
                z = torch.full(shape, 100, dtype=integer)
                assert torch.equal(ops.fake_quantize_per_tensor(x, s, z, 0, 255), expected)
    half = torch.tensor(0.37, dtype=torch.float16)
    y = ops.fake_quantize_per_tensor(x, half, torch.tensor(100), 0, 255)
    assert torch.equal(y, per_tensor(x, half.item(), 100, 0, 255))


def test_threads_do_not_change_the_result() -> None:
    x = torch.randn(1_000_003)
    y, mask = ops._fake_quantize_per_tensor_mask(x, *qparams(0.02, 0), -128, 127)
    torch.set_num_threads(1)
    one, one_mask = ops._fake_quantize_per_tensor_mask(x, *qparams(0.02, 0), -128, 127)
    assert torch.equal(y, one) and torch.equal(mask, one_mask)


@given(
    shape=st.lists(st.integers(0, 6), min_size=1, max_size=4),
    order=st.randoms(use_true_random=False),
    step=st.integers(1, 3),
    dtype=st.sampled_from(FLOATS),
    axis=st.integers(0, 3),
)
def test_any_strides_give_the_values_of_the_contiguous_tensor(
    shape: list[int], order, step: int, dtype: torch.dtype, axis: int
) -> None:
    dims = list(range(len(shape)))
    order.shuffle(dims)
    stored = torch.randn([shape[d] * step for d in dims]).mul(8).to(dtype)
    view = stored[tuple(slice(None, None, step) for _ in dims)]
    inverse = [dims.index(d) for d in range(len(dims))]
    x = view.permute(inverse).detach().requires_grad_()
    plain = x.detach().contiguous().requires_grad_()
    axis %= len(shape)
    scale = torch.rand(shape[axis]) + 0.1
    zero_point = torch.zeros(shape[axis], dtype=torch.int64)
    y = ops.fake_quantize_per_channel(x, scale, zero_point, axis, -8, 7)
    expected = ops.fake_quantize_per_channel(plain, scale, zero_point, axis, -8, 7)
    assert y.stride() == torch.empty_like(x).stride()
    assert torch.equal(y, expected)
    upstream = torch.randn(shape).to(dtype)
    y.backward(upstream)
    expected.backward(upstream)
    assert torch.equal(x.grad, plain.grad)


X = torch.ones(2, 3)
S, Z = torch.tensor(0.5), torch.tensor(0, dtype=torch.int32)
SCALES, POINTS = torch.ones(3), torch.zeros(3, dtype=torch.int32)


@pytest.mark.parametrize(
    ("args", "kind", "text"),
    [
        (
            (X.int(), S, Z, -128, 127),
            TypeError,
            "'x' must be float32, float64, float16 or bfloat16, got int32",
        ),
        ((X.to(torch.complex64), S, Z, -128, 127), TypeError, "got complex64"),
        ((X, S.int(), Z, -128, 127), TypeError, "'scale' must be float32, float64, float16 or"),
        ((X, S, S, -128, 127), TypeError, "'zero_point' must be int32 or int64, got float32"),
        (
            (X, SCALES, Z, -128, 127),
            ValueError,
            "'scale' must be a tensor with one element, got shape [3]",
        ),
        ((X, S, POINTS, -128, 127), ValueError, "'zero_point' must be a tensor with one element"),
        ((X, S * 0, Z, -128, 127), ValueError, "'scale' must be finite and positive, got 0"),
        ((X, -S, Z, -128, 127), ValueError, "'scale' must be finite and positive, got -0.5"),
        ((X, S * INF, Z, -128, 127), ValueError, "'scale' must be finite and positive, got inf"),
        ((X, S * NAN, Z, -128, 127), ValueError, "'scale' must be finite and positive, got nan"),
        ((X, S * 1e-39, Z, -128, 127), ValueError, "'scale' must be a normal fp32 number"),
        ((X, S, Z + 128, -128, 127), ValueError, "'zero_point' must be in [-128, 127], got 128"),
        (
            (X, S, torch.tensor(2**40), -128, 127),
            ValueError,
            "'zero_point' must be in [-128, 127], got 1099511627776",
        ),
        (
            (X, S, Z, 5, 5),
            ValueError,
            "'quant_min' must be less than quant_max (5), got 5",
        ),
        ((X, S, Z, -(2**40), 127), ValueError, "'quant_min' must be at least -2147483648"),
        ((X, S, Z, 0, 2**40), ValueError, "'quant_max' must be at most 2147483647"),
    ],
)
def test_wrong_arguments_per_tensor(args: tuple, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind) as error:
        ops.fake_quantize_per_tensor(*args)
    assert str(error.value).startswith("fake_quantize_per_tensor: ")
    assert text in str(error.value)


@pytest.mark.parametrize(
    ("args", "kind", "text"),
    [
        ((X, SCALES, POINTS, 2, -128, 127), ValueError, "'axis' must be in [-2, 1], got 2"),
        ((X, SCALES, POINTS, -3, -128, 127), ValueError, "'axis' must be in [-2, 1], got -3"),
        (
            (X, SCALES, POINTS, 0, -128, 127),
            ValueError,
            "'scale' must be of shape [2] (one entry for each index of axis 0), got shape [3]",
        ),
        ((X, SCALES, POINTS[:2], 1, -128, 127), ValueError, "'zero_point' must be of shape [3]"),
        ((X, SCALES[None], POINTS, 1, -128, 127), ValueError, "'scale' must be of shape [3]"),
        ((X, SCALES, SCALES, 1, -128, 127), TypeError, "'zero_point' must be int32 or int64"),
        ((X.long(), SCALES, POINTS, 1, -128, 127), TypeError, "'x' must be float32"),
        ((X, SCALES * 0, POINTS, 1, -128, 127), ValueError, "'scale' must be finite and positive"),
        (
            (X, SCALES, POINTS + 200, 1, -128, 127),
            ValueError,
            "'zero_point' must be in [-128, 127]",
        ),
        (
            (S, SCALES, POINTS, 0, -128, 127),
            ValueError,
            "'x' must be at least 1-dimensional to have channels, got shape []",
        ),
    ],
)
def test_wrong_arguments_per_channel(args: tuple, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind) as error:
        ops.fake_quantize_per_channel(*args)
    assert str(error.value).startswith("fake_quantize_per_channel: ")
    assert text in str(error.value)


def test_gradients_that_do_not_exist_are_refused() -> None:
    s = torch.tensor(0.5, requires_grad=True)
    with pytest.raises(ValueError, match="'scale' must be a tensor that needs no gradient"):
        ops.fake_quantize_per_tensor(X, s, Z, -128, 127)
    with torch.no_grad():
        ops.fake_quantize_per_tensor(X, s, Z, -128, 127)
    with warnings.catch_warnings(), torch.autograd.forward_ad.dual_level():
        warnings.simplefilter("ignore", DeprecationWarning)  # TorchScript's, at its first use
        warnings.simplefilter("ignore", FutureWarning)
        dual = torch.autograd.forward_ad.make_dual(X, X)
        with pytest.raises(NotImplementedError, match="'x' must be used in reverse mode only"):
            ops.fake_quantize_per_tensor(dual, S, Z, -128, 127)


def test_other_devices_and_layouts_are_refused_without_a_crash() -> None:
    with pytest.raises(ValueError, match="'scale' must be on the device of 'x'"):
        ops.fake_quantize_per_tensor(X.to("meta"), S, Z, -128, 127)
    with pytest.raises(NotImplementedError):
        ops.fake_quantize_per_tensor(X.to_sparse(), S, Z, -128, 127)


@pytest.mark.parametrize("bad", [[0, 0], [0], [1, 2], [-1, 0], [0, 1, 2]], ids=str)
def test_a_wrong_order_of_a_mask_is_refused(bad: list[int]) -> None:
    mask = torch.zeros(1, dtype=torch.uint8)
    with pytest.raises(ValueError, match="'order' must be a permutation of the 2 dimensions"):
        ops._mask_gradient(X, mask, bad)
    with pytest.raises(ValueError, match="'mask' must be of shape"):
        ops._mask_gradient(torch.ones(3, 3), mask, [0, 1])


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "sliced"])
def test_opcheck(requires_grad: bool, layout: str) -> None:
    x = laid_out(torch.randn(2, 3, 4, 5) * 10, layout).detach().requires_grad_(requires_grad)
    check = torch.library.opcheck
    check(ops.fake_quantize_per_tensor.default, (x, S, Z, -128, 127))
    check(ops._fake_quantize_per_tensor_mask.default, (x, S, Z, -128, 127))
    check(ops.fake_quantize_per_channel.default, (x, SCALES, POINTS, -3, -128, 127))
    check(ops._fake_quantize_per_channel_mask.default, (x, SCALES, POINTS, 1, -128, 127))
    mask = torch.arange(15, dtype=torch.uint8)
    check(ops._mask_gradient.default, (x, mask, [0, 2, 3, 1]))


PROBE = """
import hashlib, numpy, torch, horizon_plugin
from horizon_plugin import _C
random = numpy.random.default_rng(1)  # torch's own numbers depend on the instruction set
def randn(*shape):
    return torch.from_numpy(random.standard_normal(shape))
ops, digest = torch.ops.horizon, hashlib.sha256()
def note(*tensors):
    for t in tensors:
        digest.update(t.contiguous().flatten().view(torch.uint8).numpy().tobytes())
special = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), 1e-40, 65519.9, 3e38, 0.25, 0.75])
for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
    x = torch.cat([randn(777) * 40, special, torch.arange(-300, 300) / 4]).to(dtype)
    for s, z, lo, hi in ((0.5, 0, -128, 127), (0.3, 9, 0, 255), (0.001, 7, -2**31, 2**31 - 1)):
        grid = torch.tensor(s), torch.tensor(z)
        note(*ops._fake_quantize_per_tensor_mask(x, *grid, lo, hi))
        codes = ops.quantize(x, *grid)
        note(codes, ops.dequantize(codes, *grid, dtype))
    w = randn(6, 10, 3, 3).to(dtype)
    for w in (w, w.to(memory_format=torch.channels_last)):
        for base, groups in ((0, 2), (1, 2), (1, 1)):
            scale = ops.weight_scale(w, base, groups)
            note(scale, ops.quantize_weight(w, scale, base, groups))
            note(ops.fake_quantize_weight(w, base, groups))
        grids = torch.arange(1, 11) / 70, torch.arange(10)
        note(*ops._fake_quantize_per_channel_mask(w, *grids, 1, 0, 99))
    state = [torch.zeros(()), torch.zeros(()), torch.tensor(0), torch.ones(())]
    state.append(torch.zeros((), dtype=torch.int32))
    for n in (1, 5, 33, 700):
        x = randn(n).to(dtype)
        note(*ops._quantize_activation_mask(x, *state, 2, 0, 0.01, True, True, False), *state)
print(_C.cpu_capability(), digest.hexdigest())
"""


def test_every_instruction_set_gives_the_same_bits() -> None:
    found = {}
    for wish in ("default", "avx2", "avx512"):
        environment = os.environ | {"ATEN_CPU_CAPABILITY": wish}
        environment.pop("HORIZON_CPU_CAPABILITY", None)  # which would decide
        done = subprocess.run(
            [sys.executable, "-c", PROBE], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        capability, found[wish] = done.stdout.split()
        assert wish != "default" or capability == "generic"
        assert len(found[wish]) == 64
    assert len(set(found.values())) == 1, found
