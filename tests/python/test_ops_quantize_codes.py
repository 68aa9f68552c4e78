"""quantize, dequantize and straight_through."""

from __future__ import annotations

import math

import pytest
import torch
from quantize_reference import FLOATS, LAYOUTS, bits, code, laid_out

ops = torch.ops.horizon

INF, NAN = math.inf, math.nan
S, Z = torch.tensor(0.1), torch.tensor(128, dtype=torch.int32)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("scale", "zero_point"), [(0.1, 128), (0.37, 0), (2.0, 255), (0.5, 7)])
def test_codes_follow_the_formula(scale: float, zero_point: int, dtype: torch.dtype) -> None:
    ties = (torch.arange(-300, 300) + 0.5) * scale
    special = torch.tensor([0.0, -0.0, INF, -INF, 6e4, -6e4])
    x = torch.cat([special, ties, torch.randn(301) * 100 * scale]).to(dtype)
    q = ops.quantize(x, torch.tensor(scale), torch.tensor(zero_point))
    wide = dtype == torch.float64
    expected = [
        min(max(code(v, scale, zero_point, 0, 255, wide), 0), 255) for v in x.double().tolist()
    ]
    assert q.dtype == torch.uint8 and q.tolist() == expected


def test_ties_go_to_even_before_the_zero_point_is_added() -> None:
    # rint(x) + 7: 0.5 -> 0, 1.5 -> 2, 2.5 -> 2, -0.5 -> 0, -1.5 -> -2; rint(x + 7) would differ.
    x = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5])
    assert ops.quantize(x, torch.tensor(1.0), torch.tensor(7)).tolist() == [7, 9, 9, 7, 5]


@pytest.mark.parametrize("value", [2.0**31, 2.0**32, 2.0**63, 3e38, INF])
def test_what_overflows_integers_saturates(value: float) -> None:
    for n in (1, 5, 64, 67):
        x = torch.full((n,), value)
        assert ops.quantize(x, S, Z).tolist() == [255] * n
        assert ops.quantize(-x, S, Z).tolist() == [0] * n


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("length", [1, 7, 64, 65, 200, 70001])
def test_nan_is_an_error_wherever_it_is(length: int, dtype: torch.dtype) -> None:
    for where in {0, length // 2, length - 1}:
        x = torch.zeros(length, dtype=dtype)
        x[where] = NAN
        with pytest.raises(ValueError) as error:
            ops.quantize(x, S, Z)
        assert str(error.value) == "quantize: 'x' must be free of NaN, got nan"


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_body_and_tail_agree_for_every_length(dtype: torch.dtype) -> None:
    x = (torch.randn(140) * 8).to(dtype)
    whole = ops.quantize(x, S, Z)
    back = ops.dequantize(whole, S, Z, dtype)
    for length in range(1, 140):
        assert torch.equal(ops.quantize(x[1 : 1 + length], S, Z), whole[1 : 1 + length])
        part = ops.dequantize(whole[1 : 1 + length], S, Z, dtype)
        assert torch.equal(part, back[1 : 1 + length])


@pytest.mark.parametrize("dtype", [None, *FLOATS], ids=str)
@pytest.mark.parametrize("zero_point", [0, 3, 128, 255])
def test_every_code_has_its_value(zero_point: int, dtype: torch.dtype | None) -> None:
    q = torch.arange(256, dtype=torch.uint8)
    y = ops.dequantize(q, S, torch.tensor(zero_point), dtype)
    exact = (q.double() - zero_point) * S.double()
    kind = dtype or torch.float32
    expected = exact if kind == torch.float64 else exact.float().to(kind)
    assert y.dtype == kind and torch.equal(y, expected)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_codes_and_fake_quantization_are_one_grid(dtype: torch.dtype) -> None:
    x = (torch.randn(999) * 8).to(dtype)
    back = ops.dequantize(ops.quantize(x, S, Z), S, Z, dtype)
    # The signed grid of the same reals: zero point 0 in [-128, 127].
    signed = ops.fake_quantize_per_tensor(x, S, torch.tensor(0), -128, 127)
    assert torch.equal(bits(back), bits(signed))
    if dtype in (torch.float32, torch.float64):
        assert torch.equal(ops.quantize(back, S, Z), ops.quantize(x, S, Z))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_change_nothing_and_are_kept(layout: str) -> None:
    x = laid_out(torch.randn(3, 5, 7, 9) * 8, layout)
    q = ops.quantize(x, S, Z)
    assert torch.equal(q, ops.quantize(x.contiguous(), S, Z))
    assert q.stride() == torch.empty_like(x).stride()
    if layout != "expanded":
        strided = torch.empty_strided(x.shape, x.stride(), dtype=torch.uint8).copy_(q)
        y = ops.dequantize(strided, S, Z)
        assert torch.equal(y, ops.dequantize(q.contiguous(), S, Z))
        assert y.stride() == torch.empty_like(strided).stride()


def test_scalars_and_empty_tensors() -> None:
    assert ops.quantize(torch.tensor(0.52), S, Z).item() == 133
    assert ops.dequantize(torch.tensor(130, dtype=torch.uint8), S, Z).item() == S.item() * 2
    for shape in [(0,), (2, 0, 3)]:
        q = ops.quantize(torch.empty(shape), S, Z)
        assert q.shape == shape and ops.dequantize(q, S, Z).shape == shape


def test_no_gradient_flows_through_codes() -> None:
    x = torch.randn(5, requires_grad=True)
    assert not ops.quantize(x, S, Z).requires_grad
    with pytest.raises(ValueError, match="'scale' must be a tensor that needs no gradient"):
        ops.dequantize(torch.zeros(3, dtype=torch.uint8), S.clone().requires_grad_(), Z)


X, Q = torch.ones(2, 3), torch.ones(2, 3, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("op", "args", "kind", "text"),
    [
        ("quantize", (Q, S, Z), TypeError, "'x' must be float32, float64, float16 or bfloat16"),
        ("quantize", (X, S * 0, Z), ValueError, "'scale' must be finite and positive, got 0"),
        ("quantize", (X, S, Z + 200), ValueError, "'zero_point' must be in [0, 255], got 328"),
        ("quantize", (X, S, Z - 129), ValueError, "'zero_point' must be in [0, 255], got -1"),
        ("quantize", (X, torch.ones(3), Z), ValueError, "'scale' must be a tensor with one"),
        ("quantize", (X, S, S), TypeError, "'zero_point' must be int32 or int64, got float32"),
        ("dequantize", (X, S, Z), TypeError, "'q' must be uint8, got float32"),
        ("dequantize", (Q.char(), S, Z), TypeError, "'q' must be uint8, got int8"),
        ("dequantize", (Q, -S, Z), ValueError, "'scale' must be finite and positive"),
        ("dequantize", (Q, S, Z + 200), ValueError, "'zero_point' must be in [0, 255]"),
        (
            "dequantize",
            (Q, S, Z, torch.int32),
            TypeError,
            "'dtype' must be float32, float64, float16 or bfloat16, got int32",
        ),
        (
            "straight_through",
            (X, torch.ones(3, 2)),
            ValueError,
            "'surrogate' must be of shape [2, 3], got [3, 2]",
        ),
        (
            "straight_through",
            (X, X.double()),
            TypeError,
            "'surrogate' must be float32, got float64",
        ),
        ("straight_through", (Q, Q), TypeError, "'value' must be float32, float64, float16"),
    ],
)
def test_wrong_arguments(op: str, args: tuple, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind) as error:
        getattr(ops, op)(*args)
    assert str(error.value).startswith(f"{op}: ") and text in str(error.value)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_straight_through_is_the_value_forward_and_the_surrogate_backward(
    dtype: torch.dtype, layout: str
) -> None:
    value = laid_out(torch.randn(3, 4, 5, 6).to(dtype), layout).detach().requires_grad_()
    surrogate = torch.randn(3, 4, 5, 6).to(dtype).requires_grad_()
    y = ops.straight_through(value, surrogate)
    assert torch.equal(y, value) and y.data_ptr() != value.data_ptr()
    assert y.stride() == torch.empty_like(value).stride()
    upstream = torch.randn(3, 4, 5, 6).to(dtype)
    y.backward(upstream)
    assert torch.equal(surrogate.grad, upstream) and value.grad is None


def test_straight_through_records_nothing_for_a_surrogate_without_gradient() -> None:
    assert not ops.straight_through(X.clone().requires_grad_(), X).requires_grad


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "sliced"])
def test_opcheck(layout: str, requires_grad: bool) -> None:
    x = laid_out(torch.randn(2, 3, 4, 5), layout).detach().requires_grad_(requires_grad)
    check = torch.library.opcheck
    check(ops.quantize.default, (x, S, Z))
    q = ops.quantize(x, S, Z)
    check(ops.dequantize.default, (q, S, Z))
    check(ops.dequantize.default, (q, S, Z, torch.bfloat16))
    surrogate = torch.randn(2, 3, 4, 5).requires_grad_(requires_grad)
    check(ops.straight_through.default, (x.detach(), surrogate))
