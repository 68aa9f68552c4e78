"""weight_scale, quantize_weight, fake_quantize_weight and fold_batch_norm."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from quantize_reference import FLOATS, bits

ops = torch.ops.horizon

INF, NAN = math.inf, math.nan
CONV2D, CONV_TRANSPOSE2D, LINEAR = 0, 1, 2
f32 = np.float32

#: base, groups, weight shape
SHAPES = [
    (CONV2D, 1, (8, 3, 3, 3)),
    (CONV2D, 4, (8, 5, 1, 1)),
    (CONV2D, 16, (16, 1, 3, 3)),
    (CONV2D, 1, (5, 70, 5, 1)),
    (CONV_TRANSPOSE2D, 1, (6, 7, 3, 3)),
    (CONV_TRANSPOSE2D, 3, (12, 5, 2, 2)),
    (CONV_TRANSPOSE2D, 6, (6, 1, 4, 4)),
    (CONV_TRANSPOSE2D, 2, (70, 66, 1, 1)),
    (CONV_TRANSPOSE2D, 2, (4, 3, 9, 8)),
    (LINEAR, 1, (7, 100)),
    (LINEAR, 1, (3, 1)),
]
FORMATS = ["contiguous", "channels_last", "permuted", "sliced"]


def in_format(weight: torch.Tensor, name: str) -> torch.Tensor:
    if name == "channels_last" and weight.dim() == 4:
        return weight.contiguous(memory_format=torch.channels_last)
    if name == "permuted":
        return weight.transpose(0, 1).contiguous().transpose(0, 1)
    if name == "sliced":
        wide = torch.full((*weight.shape[:-1], 2 * weight.shape[-1]), NAN, dtype=weight.dtype)
        wide[..., ::2] = weight
        return wide[..., ::2]
    return weight.contiguous()


def channel_of(base: int, groups: int, shape: tuple[int, ...], index: tuple[int, ...]) -> int:
    """The output channel of an element: g (out / groups) + c for transposed convolutions."""
    if base != CONV_TRANSPOSE2D:
        return index[0]
    group = index[0] // (shape[0] // groups)
    return group * shape[1] + index[1]


def channels(base: int, groups: int, shape: tuple[int, ...]) -> int:
    return shape[1] * groups if base == CONV_TRANSPOSE2D else shape[0]


def reference(
    weight: torch.Tensor, base: int, groups: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scales (fp32), codes and on-grid values (in double), element by element."""
    values = weight.double().numpy()
    peaks = np.zeros(channels(base, groups, values.shape))
    for index in np.ndindex(values.shape):
        c = channel_of(base, groups, values.shape, index)
        peaks[c] = max(peaks[c], abs(values[index]))
    scales = np.maximum(peaks.astype(f32) / f32(127), f32(2.0**-23))
    codes = np.zeros(values.shape, np.int64)
    on_grid = np.zeros(values.shape)
    for index in np.ndindex(values.shape):
        s = scales[channel_of(base, groups, values.shape, index)]
        position = values[index] * np.float64(f32(1) / s)
        if weight.dtype != torch.float64:
            position = np.float64(f32(position))
        codes[index] = round(float(position))
        on_grid[index] = codes[index] * np.float64(s)
    return scales, codes, on_grid


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("base", "groups", "shape"), SHAPES, ids=str)
def test_weights_follow_the_formula(
    base: int, groups: int, shape: tuple[int, ...], name: str, dtype: torch.dtype
) -> None:
    plain = torch.randn(shape).mul(torch.rand(shape[0], *[1] * (len(shape) - 1)) + 0.1).to(dtype)
    weight = in_format(plain, name)
    scales, codes, on_grid = reference(plain, base, groups)
    scale = ops.weight_scale(weight, base, groups)
    assert scale.dtype == torch.float32
    assert scale.tolist() == scales.astype(np.float64).tolist()
    q = ops.quantize_weight(weight, scale, base, groups)
    assert q.dtype == torch.int8 and q.tolist() == codes.tolist()
    assert abs(codes).max() <= 127, "abs-max scales never clip"
    y = ops.fake_quantize_weight(weight, base, groups)
    exact = torch.from_numpy(on_grid)
    expected = exact if dtype == torch.float64 else exact.float().to(dtype)
    assert y.dtype == dtype and torch.equal(y, expected)
    layout = torch.empty_like(weight).stride()
    assert y.stride() == layout and q.stride() == layout


@pytest.mark.parametrize(("base", "groups", "shape"), SHAPES, ids=str)
def test_a_channel_is_quantized_on_its_own_scale(
    base: int, groups: int, shape: tuple[int, ...]
) -> None:
    weight = torch.zeros(shape)
    count = channels(base, groups, shape)
    for index in np.ndindex(shape):
        weight[index] = 2.0 ** (channel_of(base, groups, shape, index) % 5)
    scale = ops.weight_scale(weight, base, groups)
    assert scale.tolist() == [float(f32(2.0 ** (c % 5)) / f32(127)) for c in range(count)]
    assert ops.quantize_weight(weight, scale, base, groups).unique().tolist() == [127]


@given(
    base=st.sampled_from([CONV2D, CONV_TRANSPOSE2D]),
    groups=st.integers(1, 4),
    rows=st.integers(1, 4),
    columns=st.integers(1, 5),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    last=st.booleans(),
)
def test_any_grouped_weight_follows_the_formula(
    base: int, groups: int, rows: int, columns: int, kernel: tuple[int, int], last: bool
) -> None:
    plain = torch.randn(groups * rows, columns, *kernel)
    weight = in_format(plain, "channels_last" if last else "contiguous")
    scales, codes, on_grid = reference(plain, base, groups)
    scale = ops.weight_scale(weight, base, groups)
    assert scale.tolist() == scales.astype(np.float64).tolist()
    assert ops.quantize_weight(weight, scale, base, groups).tolist() == codes.tolist()
    assert torch.equal(
        ops.fake_quantize_weight(weight, base, groups), torch.from_numpy(on_grid).float()
    )


def test_a_transposed_weight_matches_its_grouped_view() -> None:
    g, i, o = 3, 4, 5
    weight = torch.randn(g * i, o, 2, 3)
    view = weight.view(g, i, o, 2, 3)
    peak = view.abs().amax(dim=(1, 3, 4)).flatten()
    assert torch.equal(ops.weight_scale(weight, CONV_TRANSPOSE2D, g), peak / 127)


def test_dead_and_tiny_channels_are_harmless() -> None:
    weight = torch.zeros(3, 2, 3, 3)
    weight[1] = 1e-12
    weight[2] = 1e-45
    scale = ops.weight_scale(weight, CONV2D, 1)
    assert scale.tolist() == [2.0**-23] * 3
    assert not ops.quantize_weight(weight, scale, CONV2D, 1).any()
    assert not ops.fake_quantize_weight(weight, CONV2D, 1).any()


def test_the_largest_numbers_come_back() -> None:
    top = float(np.finfo(f32).max)
    weight = torch.tensor([[top, -top], [3e-38, -3e-38]])
    scale = ops.weight_scale(weight, LINEAR, 1)
    assert ops.quantize_weight(weight, scale, LINEAR, 1).tolist() == [[127, -127], [0, 0]]
    half = torch.tensor([[65504.0, -65504.0, 1.0]], dtype=torch.float16)
    assert ops.fake_quantize_weight(half, LINEAR, 1).tolist() == [[65504.0, -65504.0, 0.0]]


@pytest.mark.parametrize("shape", [(0, 3, 3, 3), (4, 0, 3, 3), (4, 3, 0, 3)], ids=str)
def test_empty_weights(shape: tuple[int, ...]) -> None:
    weight = torch.empty(shape)
    for base in (CONV2D, CONV_TRANSPOSE2D):
        scale = ops.weight_scale(weight, base, 1)
        assert scale.tolist() == [2.0**-23] * channels(base, 1, shape)
        assert ops.quantize_weight(weight, scale, base, 1).shape == shape
        assert ops.fake_quantize_weight(weight, base, 1).shape == shape


@pytest.mark.parametrize("name", FORMATS)
def test_the_gradient_of_a_weight_is_the_identity(name: str) -> None:
    weight = in_format(torch.randn(6, 4, 3, 3), name).requires_grad_()
    upstream = torch.randn(6, 4, 3, 3)
    ops.fake_quantize_weight(weight, CONV_TRANSPOSE2D, 2).backward(upstream)
    assert torch.equal(weight.grad, upstream)
    assert not ops.weight_scale(weight, CONV2D, 1).requires_grad
    scale = ops.weight_scale(weight, CONV2D, 1)
    assert not ops.quantize_weight(weight, scale, CONV2D, 1).requires_grad


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("base", [CONV2D, CONV_TRANSPOSE2D])
@pytest.mark.parametrize("kernel", [(1, 1), (3, 3), (9, 9)])
@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_a_diverged_weight_shows(
    value: float, kernel: tuple[int, int], base: int, dtype: torch.dtype
) -> None:
    weight = torch.ones(4, 4, *kernel, dtype=dtype)
    good = ops.weight_scale(weight, base, 1)
    weight[2, 1, -1, -1] = value
    scale = ops.weight_scale(weight, base, 1)
    bad = 1 if base == CONV_TRANSPOSE2D else 2
    assert [math.isfinite(s) for s in scale.tolist()] == [c != bad for c in range(4)]
    y = ops.fake_quantize_weight(weight, base, 1).transpose(0, 1 if base else 0)
    assert y[bad].isnan().all() and not y[[c for c in range(4) if c != bad]].isnan().any()
    with pytest.raises(ValueError) as error:
        ops.quantize_weight(weight, scale, base, 1)
    text = "nan" if math.isnan(value) else "inf"
    assert str(error.value) == f"quantize_weight: 'weight' must be finite, got {text}"
    if math.isnan(value):
        with pytest.raises(ValueError, match="quantize_weight: 'weight' must be finite, got nan"):
            ops.quantize_weight(weight, good, base, 1)


def test_other_scales_clip_to_127() -> None:
    weight = torch.tensor([[1.0, -1.0, 0.004, INF, -INF]])
    q = ops.quantize_weight(weight, torch.tensor([0.005]), LINEAR, 1)
    assert q.tolist() == [[127, -127, 1, 127, -127]]


W4, W2 = torch.ones(4, 2, 3, 3), torch.ones(4, 2)


@pytest.mark.parametrize(
    ("weight", "base", "groups", "kind", "text"),
    [
        (
            W4,
            3,
            1,
            ValueError,
            "'base' must be 0 (conv2d), 1 (conv_transpose2d) or 2 (linear), got 3",
        ),
        (W4, -1, 1, ValueError, "'base' must be 0 (conv2d)"),
        (W4, 2, 1, ValueError, "'weight' must be 2-dimensional, got shape [4, 2, 3, 3]"),
        (W2, 0, 1, ValueError, "'weight' must be 4-dimensional, got shape [4, 2]"),
        (W2, 1, 1, ValueError, "'weight' must be 4-dimensional, got shape [4, 2]"),
        (W2, 2, 2, ValueError, "'groups' must be 1 for linear, got 2"),
        (W4, 0, 0, ValueError, "'groups' must be at least 1, got 0"),
        (W4, 1, -2, ValueError, "'groups' must be at least 1, got -2"),
        (W4, 0, 3, ValueError, "'groups' must be a divisor of the weight's first size (4), got 3"),
        (W4, 1, 3, ValueError, "'groups' must be a divisor of the weight's first size (4), got 3"),
        (W4.int(), 0, 1, TypeError, "'weight' must be float32, float64, float16 or bfloat16"),
    ],
)
def test_wrong_arguments(
    weight: torch.Tensor, base: int, groups: int, kind: type[Exception], text: str
) -> None:
    calls = {
        "weight_scale": lambda: ops.weight_scale(weight, base, groups),
        "quantize_weight": lambda: ops.quantize_weight(weight, torch.ones(4), base, groups),
        "fake_quantize_weight": lambda: ops.fake_quantize_weight(weight, base, groups),
    }
    for name, call in calls.items():
        with pytest.raises(kind) as error:
            call()
        assert str(error.value).startswith(f"{name}: ") and text in str(error.value)


@pytest.mark.parametrize(
    ("scale", "kind", "text"),
    [
        (torch.ones(2), ValueError, "'scale' must be of shape [4], got [2]"),
        (torch.ones(4, 1), ValueError, "'scale' must be of shape [4], got [4, 1]"),
        (torch.tensor(1.0), ValueError, "'scale' must be of shape [4], got []"),
        (torch.ones(4).int(), TypeError, "'scale' must be float32, float64, float16 or bfloat16"),
        (torch.zeros(4), ValueError, "'scale' must be finite and positive, got 0"),
        (-torch.ones(4), ValueError, "'scale' must be finite and positive, got -1"),
        (torch.ones(4) * NAN, ValueError, "'scale' must be finite and positive, got nan"),
    ],
)
def test_wrong_scales(scale: torch.Tensor, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind) as error:
        ops.quantize_weight(W4, scale, CONV2D, 1)
    assert str(error.value).startswith("quantize_weight: ") and text in str(error.value)


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("name", FORMATS)
def test_opcheck(name: str, requires_grad: bool) -> None:
    weight = in_format(torch.randn(4, 6, 3, 3), name).requires_grad_(requires_grad)
    check = torch.library.opcheck
    for base in (CONV2D, CONV_TRANSPOSE2D):
        count = channels(base, 2, weight.shape)
        check(ops.weight_scale.default, (weight, base, 2))
        check(ops.quantize_weight.default, (weight, torch.ones(count), base, 2))
        check(ops.fake_quantize_weight.default, (weight, base, 2))


def test_batch_norm_is_folded_in_double() -> None:
    bias, gamma, beta, mean = (torch.randn(5) for _ in range(4))
    var = torch.rand(5)
    factor, offset = ops.fold_batch_norm(bias, gamma, beta, mean, var, 1e-5, 5)
    assert factor.dtype == offset.dtype == torch.float64
    for c in range(5):
        b, g, t, m, v = (float(x[c]) for x in (bias, gamma, beta, mean, var))
        a = g / math.sqrt(v + 1e-5)
        assert factor[c].item() == a
        assert offset[c].item() == b * a + (t - m * a)


def test_what_is_missing_is_neutral() -> None:
    two = torch.tensor([2.0, 4.0])
    mean, var = torch.tensor([3.0, 5.0]), torch.tensor([4.0, 16.0])
    none = (None,) * 4
    cases = [
        ((None, *none), [1.0, 1.0], [0.0, 0.0]),
        ((two, *none), [1.0, 1.0], [2.0, 4.0]),
        # a = 1 / sqrt(var): 1/2, 1/4; -mean a: -1.5, -1.25
        ((None, None, None, mean, var), [0.5, 0.25], [-1.5, -1.25]),
        # a = gamma / sqrt(var): 1, 1; bias a - mean a: -1, -1
        ((two, two, None, mean, var), [1.0, 1.0], [-1.0, -1.0]),
        # beta - mean a: 0.5, 2.75
        ((None, None, two, mean, var), [0.5, 0.25], [0.5, 2.75]),
    ]
    for tensors, factor, offset in cases:
        found = ops.fold_batch_norm(*tensors, 0.0, 2)
        assert [t.tolist() for t in found] == [factor, offset]
        given = [t for t in tensors if t is not None]
        assert not {t.data_ptr() for t in found} & {t.data_ptr() for t in given}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_folding_takes_every_float_dtype(dtype: torch.dtype) -> None:
    tensors = [torch.rand(3).to(dtype) for _ in range(5)]
    found = ops.fold_batch_norm(*tensors, 1e-5, 3)
    expected = ops.fold_batch_norm(*[t.double() for t in tensors], 1e-5, 3)
    assert all(torch.equal(bits(a), bits(b)) for a, b in zip(found, expected, strict=True))


def test_folding_is_differentiable() -> None:
    tensors = [(torch.rand(3, dtype=torch.float64) + 0.5).requires_grad_() for _ in range(5)]
    assert torch.autograd.gradcheck(lambda *t: ops.fold_batch_norm(*t, 1e-5, 3), tensors)


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        (
            {"mean": None},
            ValueError,
            "'mean' must be given together with 'var', got var without mean",
        ),
        (
            {"var": None},
            ValueError,
            "'mean' must be given together with 'var', got mean without var",
        ),
        ({"gamma": torch.ones(4)}, ValueError, "'gamma' must be of shape [3], got [4]"),
        ({"bias": torch.ones(3, 1)}, ValueError, "'bias' must be of shape [3], got [3, 1]"),
        ({"beta": torch.ones(3).long()}, TypeError, "'beta' must be float32"),
        ({"eps": -1.0}, ValueError, "'eps' must be finite and at least 0, got -1"),
        ({"eps": NAN}, ValueError, "'eps' must be finite and at least 0, got nan"),
        ({"channels": -1}, ValueError, "'channels' must be at least 0, got -1"),
    ],
)
def test_wrong_folds(change: dict, kind: type[Exception], text: str) -> None:
    names = ("bias", "gamma", "beta", "mean", "var")
    arguments = {name: torch.ones(3) for name in names} | {"eps": 1e-5, "channels": 3} | change
    with pytest.raises(kind) as error:
        ops.fold_batch_norm(*arguments.values())
    assert str(error.value).startswith("fold_batch_norm: ") and text in str(error.value)


@pytest.mark.parametrize("requires_grad", [False, True])
def test_opcheck_of_folds(requires_grad: bool) -> None:
    tensors = [(torch.rand(3) + 0.5).requires_grad_(requires_grad) for _ in range(5)]
    torch.library.opcheck(ops.fold_batch_norm.default, (*tensors, 1e-5, 3))
    torch.library.opcheck(ops.fold_batch_norm.default, (None,) * 5 + (1e-5, 3))
