"""observe_ and quantize_activation: ranges, grids, gradients, errors."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from quantize_reference import (
    FLOATS,
    LAYOUTS,
    PRESETS,
    bits,
    fake_quantize,
    laid_out,
    moving_average,
    state,
)

ops = torch.ops.horizon

INF, NAN = math.inf, math.nan
MOVING, MINMAX, FIXED = 0, 1, 2
#: Offset between the grid's own zero point and the stored one.
STORED = {"horizon": 128, "tensorrt": 128, "x86": 0}
ENDS = {"horizon": (-128, 127), "tensorrt": (-128, 127), "x86": (0, 255)}


def observe(
    x: torch.Tensor,
    q: dict[str, torch.Tensor],
    preset: str = "horizon",
    observer: int = MOVING,
    c: float = 0.01,
    skip: bool = False,
) -> None:
    ops.observe_(x, *q.values(), PRESETS[preset], observer, c, skip)


def quantize(
    x: torch.Tensor,
    q: dict[str, torch.Tensor] | None,
    preset: str = "horizon",
    observer: int = MOVING,
    c: float = 0.01,
    observes: bool = True,
    fake: bool = True,
    skip: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    tensors = [None] * 5 if q is None else list(q.values())
    return ops.quantize_activation(x, *tensors, PRESETS[preset], observer, c, observes, fake, skip)


def numbers(q: dict[str, torch.Tensor]) -> dict[str, float]:
    return {name: tensor.item() for name, tensor in q.items()}


f32 = np.float32


@pytest.mark.parametrize(
    ("preset", "lo", "hi", "scale", "zero_point"),
    [
        ("horizon", -2.55, 1.0, 2.55 / 127.5, 0),  # max|x| / 127.5
        ("horizon", 1.0, 5.1, 5.1 / 127.5, 0),
        ("tensorrt", -2.54, 1.0, 2.54 / 127, 0),  # max|x| / 127
        ("x86", -1.0, 1.55, 2.55 / 255, 100),  # 2.55 / 255 = 0.01, 1 / 0.01
        ("x86", 1.0, 2.55, 0.01, 0),  # zero is put into the range: [0, 2.55]
        ("x86", -2.55, -1.0, 0.01, 255),  # [-2.55, 0]
        ("horizon", 0.0, 0.0, 2.0**-23, 0),  # the smallest scale
        ("tensorrt", -1e-9, 1e-9, 2.0**-23, 0),
        ("x86", 0.0, 0.0, 2.0**-23, 0),
    ],
)
def test_the_first_batch_sets_range_and_grid(
    preset: str, lo: float, hi: float, scale: float, zero_point: int
) -> None:
    q = state()
    observe(torch.tensor([lo, hi, (lo + hi) / 2]), q, preset)
    found = numbers(q)
    assert (found["min_val"], found["max_val"]) == (f32(lo), f32(hi)), "as observed, without zero"
    assert found["observed"] == 1
    assert found["scale"] == pytest.approx(scale, rel=1e-6)
    assert found["zero_point"] == zero_point


def test_scales_are_rounded_once() -> None:
    q = state()
    observe(torch.tensor([0.3]), q)
    assert q["scale"].item() == float(f32(0.3) / f32(127.5))
    observe(torch.tensor([0.3]), q := state(), "tensorrt")
    assert q["scale"].item() == float(f32(0.3) / f32(127))
    observe(torch.tensor([-0.1, 0.3]), q := state(), "x86")
    assert q["scale"].item() == float(f32((np.float64(f32(0.3)) + np.float64(f32(0.1))) / 255))


def test_a_moving_average_follows_later_batches_with_one_rounding() -> None:
    q, lo, hi = state(), None, None
    for step in range(20):
        x = torch.randn(37) * (step + 1)
        observe(x, q, c=0.01)
        small, large = x.min().item(), x.max().item()
        lo = small if lo is None else moving_average(lo, small, 0.01)
        hi = large if hi is None else moving_average(hi, large, 0.01)
        assert (q["min_val"].item(), q["max_val"].item()) == (lo, hi)
        assert q["observed"].item() == step + 1
        assert q["scale"].item() == float(f32(max(-lo, hi)) / f32(127.5))


def test_minimum_and_maximum_never_shrink() -> None:
    q = state()
    for batch, expected in [([1.0, 2.0], (1, 2)), ([0.0, 1.5], (0, 2)), ([-3.0, 9.0], (-3, 9))]:
        observe(torch.tensor(batch), q, observer=MINMAX)
        assert (q["min_val"].item(), q["max_val"].item()) == expected


def test_a_fixed_range_never_moves() -> None:
    q = state(min_val=-1, max_val=1, scale=0.25)
    before = numbers(q)
    observe(torch.tensor([100.0, NAN]), q, observer=FIXED)
    quantize(torch.tensor([100.0]), q, observer=FIXED)
    assert numbers(q) == before


def test_a_range_across_all_of_fp32_stays_finite() -> None:
    top = float(np.finfo(f32).max)
    q = state()
    observe(torch.tensor([-top, -top]), q)
    observe(torch.tensor([top, top]), q, c=0.5)  # x - r overflows fp32
    assert (q["min_val"].item(), q["max_val"].item()) == (0.0, 0.0)
    observe(torch.tensor([-top, top]), q := state(), "x86")
    # (2 top) / 255, and -lo / scale = 127.5, which rounds to 128.
    assert q["scale"].item() == float(f32(2 * top / 255))
    assert q["zero_point"].item() == 128


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("length", [1, 2, 15, 31, 33, 64, 100, 40000, 70001])
def test_extremes_are_found_wherever_they_are(dtype: torch.dtype, length: int) -> None:
    for where in {0, length // 2, length - 1}:
        x = torch.full((length,), -0.5, dtype=dtype)
        x[where] = 3.0
        observe(x, q := state())
        assert q["max_val"].item() == 3.0
        assert q["min_val"].item() == (-0.5 if length > 1 else 3.0)
        observe(-x, q := state())
        assert q["min_val"].item() == -3.0


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("value", "text"), [(NAN, "nan"), (INF, "inf"), (-INF, "-inf")])
@pytest.mark.parametrize("length", [1, 16, 33, 64, 100, 70001])
def test_a_batch_that_is_not_finite_is_an_error_and_changes_nothing(
    length: int, value: float, text: str, dtype: torch.dtype
) -> None:
    for where in {0, length // 3, length - 1}:
        for sign in (1, -1):  # a NaN has a sign as well
            x = torch.linspace(-1, 1, length).to(dtype)
            x[where] = value
            x = (x.neg() if value != value and sign < 0 else x).contiguous()
            q = state(min_val=-1, max_val=2, observed=5, scale=0.5)
            before = numbers(q)
            with pytest.raises(ValueError) as error:
                observe(x, q)
            assert str(error.value) == f"observe: 'x' must be finite, got {text}"
            with pytest.raises(ValueError, match="observe: 'x' must be finite"):
                quantize(x, q)
            assert numbers(q) == before


def test_nan_wins_over_infinity_in_the_message() -> None:
    with pytest.raises(ValueError, match="got nan"):
        observe(torch.tensor([INF, NAN, -INF]), state())


def test_a_double_beyond_fp32_is_not_finite() -> None:
    with pytest.raises(ValueError, match="'x' must be finite, got inf"):
        observe(torch.tensor([1e300], dtype=torch.float64), state())


# Operators warn through LibTorch's handler, which writes to the standard error stream.
WARNING = "observe: a batch that is not finite was skipped; its range stays"


def test_skip_nonfinite_warns_and_leaves_the_range(capfd: pytest.CaptureFixture) -> None:
    q = state(min_val=-1, max_val=2, observed=5, scale=0.5)
    before = numbers(q)
    x = torch.tensor([1.0, NAN, 100.0])
    torch.set_warn_always(True)
    try:
        observe(x, q, skip=True)
        y, scale, _ = quantize(x, q, skip=True)
    finally:
        torch.set_warn_always(False)
    assert capfd.readouterr().err.count(WARNING) == 2
    assert numbers(q) == before
    # The old grid serves: 127 * 0.5 is the end of the range.
    assert y[0] == 1.0 and y[1].isnan() and y[2] == 63.5 and scale == 0.5


def test_skip_nonfinite_warns_once(capfd: pytest.CaptureFixture) -> None:
    observe(torch.tensor([NAN]), state(), skip=True)
    capfd.readouterr()
    observe(torch.tensor([NAN]), state(), skip=True)
    assert WARNING not in capfd.readouterr().err


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0, 4, 4)])
def test_an_empty_batch_changes_nothing(shape: tuple[int, ...]) -> None:
    q = state(min_val=-1, max_val=2, observed=5, scale=0.5)
    before = numbers(q)
    observe(torch.empty(shape), q)
    y, scale, zero_point = quantize(torch.empty(shape), q)
    assert numbers(q) == before
    assert y.shape == shape and scale == 0.5 and zero_point == 128


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_layouts_and_dtypes_give_one_range(layout: str, dtype: torch.dtype) -> None:
    x = laid_out(torch.randn(3, 5, 7, 9).to(dtype), layout)
    observe(x, q := state(), "x86")
    assert q["min_val"].item() == x.double().min().to(torch.float32).item()
    assert q["max_val"].item() == x.double().max().to(torch.float32).item()
    y, scale, zero_point = quantize(x, moved := state(), "x86")
    assert numbers(moved) == numbers(q)
    values, _ = fake_quantize(x, scale.item(), zero_point.item(), 0, 255)
    assert torch.equal(y, values)
    assert y.stride() == torch.empty_like(x).stride()


def test_a_scalar_is_a_batch() -> None:
    observe(torch.tensor(2.55), q := state())
    assert q["max_val"].item() == f32(2.55) and q["observed"].item() == 1
    observe(torch.tensor([1.0, 2.0, 5.1]).expand(4, 3)[:, 2:], q := state())
    assert q["min_val"].item() == f32(5.1)


@pytest.mark.parametrize("preset", PRESETS)
def test_an_activation_is_quantized_on_the_updated_grid(preset: str) -> None:
    q = state()
    for step in range(3):
        x = (torch.randn(5, 77) + 0.3) * (step + 1)
        expected = {name: tensor.clone() for name, tensor in q.items()}
        observe(x, expected, preset)
        leaf = x.requires_grad_()
        y, scale, zero_point = quantize(leaf, q, preset)
        assert numbers(q) == numbers(expected)
        assert scale.item() == q["scale"].item() and scale.dtype == torch.float32
        assert zero_point.item() == q["zero_point"].item() + STORED[preset]
        assert zero_point.dtype == torch.int32 and scale.shape == zero_point.shape == ()
        lo, hi = ENDS[preset]
        own = ops.fake_quantize_per_tensor(x.detach(), q["scale"], q["zero_point"], lo, hi)
        assert torch.equal(bits(y), bits(own))
        upstream = torch.randn(5, 77)
        y.backward(upstream)
        _, passes = fake_quantize(x.detach(), scale.item(), q["zero_point"].item(), lo, hi)
        assert torch.equal(leaf.grad, upstream * passes)
        assert not scale.requires_grad and y.requires_grad


def test_a_moving_range_masks_what_it_does_not_cover_yet() -> None:
    q = state()
    quantize(torch.tensor([-1.0, 1.0]), q)
    x = torch.tensor([0.5, 50.0, -50.0], requires_grad=True)
    y, _, _ = quantize(x, q)
    y.sum().backward()
    assert x.grad.tolist() == [1.0, 0.0, 0.0]
    # The upper end moves by 0.01 * (50 - 1): 1.49, the lower to -1.49.
    assert q["max_val"].item() == pytest.approx(1.49)


def test_what_is_returned_is_fresh() -> None:
    q = state(scale=0.5)
    x = torch.tensor([1.0, 2.0])
    for fake in (True, False):
        y, scale, zero_point = quantize(x, q, observes=False, fake=fake)
        pointers = {t.data_ptr() for t in (x, *q.values())}
        assert not pointers & {t.data_ptr() for t in (y, scale, zero_point) if t.numel()}
    _, first, _ = quantize(x, q)
    kept = first.item()
    quantize(x * 100, q)
    assert first.item() == kept != q["scale"].item()


def test_ranges_stay_without_observe() -> None:
    q = state(min_val=-1, max_val=2, observed=5, scale=0.5)
    before = numbers(q)
    y, scale, _ = quantize(torch.tensor([0.6, 100.0, NAN]), q, observes=False)
    assert numbers(q) == before
    assert y[:2].tolist() == [0.5, 63.5] and y[2].isnan() and scale == 0.5


def test_without_fake_quantize_the_range_moves_and_values_pass() -> None:
    q = state()
    x = torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last).requires_grad_()
    y, scale, zero_point = quantize(x, q, fake=False)
    assert torch.equal(y, x) and y.stride() == x.stride()
    assert scale.numel() == zero_point.numel() == 0
    assert (scale.dtype, zero_point.dtype) == (torch.float32, torch.int32)
    assert q["observed"].item() == 1
    upstream = torch.randn_like(x)
    y.backward(upstream)
    assert torch.equal(x.grad, upstream)


def test_an_output_without_a_quantizer_passes() -> None:
    x = torch.randn(5, requires_grad=True)
    y, scale, zero_point = quantize(x, None)
    assert torch.equal(y, x) and scale.numel() == zero_point.numel() == 0
    y.sum().backward()
    assert torch.equal(x.grad, torch.ones(5))


def test_nothing_is_recorded_without_a_need() -> None:
    x = torch.randn(5, requires_grad=True)
    with torch.no_grad():
        y, _, _ = quantize(x, state())
    assert not y.requires_grad
    observe(x, q := state())
    assert q["observed"].item() == 1
    with torch.inference_mode():
        quantize(x, state())


def test_in_place_updates_are_seen_by_autograd() -> None:
    for update in (observe, quantize):
        q = state()
        versions = [tensor._version for tensor in q.values()]
        update(torch.randn(5), q)
        assert all(t._version > v for t, v in zip(q.values(), versions, strict=True))
    # A graph that needs the scale as it was says so.
    x = torch.randn(3, requires_grad=True)
    q = state()
    product = x * q["scale"]
    observe(torch.randn(5), q)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


def test_threads_do_not_change_the_range() -> None:
    x = torch.randn(1_000_003)
    observe(x, many := state())
    torch.set_num_threads(1)
    observe(x, one := state())
    assert numbers(many) == numbers(one)


def test_a_traced_function_observes_and_reloads() -> None:
    class Quantizer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, tensor in state(scale=0.5).items():
                self.register_buffer(name, tensor)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            tensors = (self.min_val, self.max_val, self.observed, self.scale, self.zero_point)
            return ops.quantize_activation(x, *tensors, 0, 0, 0.01, False, True, False)[0]

    x = torch.randn(50)
    module = Quantizer()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        traced = torch.jit.trace(module, x)
        file = io.BytesIO()
        torch.jit.save(traced, file)
        file.seek(0)
        loaded = torch.jit.load(file)
    other = torch.randn(3, 40) * 30
    assert torch.equal(loaded(other), module(other))


X = torch.ones(4)


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        ({"x": X.int()}, TypeError, "'x' must be float32, float64, float16 or bfloat16, got int32"),
        ({"min_val": X[0].double()}, TypeError, "'min_val' must be float32, got float64"),
        ({"scale": X[0].half()}, TypeError, "'scale' must be float32, got float16"),
        ({"observed": X[0]}, TypeError, "'observed' must be int64, got float32"),
        ({"zero_point": torch.tensor(0)}, TypeError, "'zero_point' must be int32, got int64"),
        ({"max_val": X}, ValueError, "'max_val' must be a tensor with one element, got shape [4]"),
        ({"preset": 3}, ValueError, "'preset' must be 0 (horizon), 1 (tensorrt) or 2 (x86), got 3"),
        ({"preset": -1}, ValueError, "'preset' must be 0 (horizon)"),
        ({"observer": 3}, ValueError, "'observer' must be 0 (moving average)"),
        ({"c": 0.0}, ValueError, "'averaging_constant' must be in (0, 1], got 0"),
        ({"c": 1.5}, ValueError, "'averaging_constant' must be in (0, 1], got 1.5"),
        ({"c": NAN}, ValueError, "'averaging_constant' must be in (0, 1], got nan"),
    ],
)
def test_wrong_arguments(change: dict, kind: type[Exception], text: str) -> None:
    q = state(scale=0.5)
    arguments = {"x": X} | q | {"preset": 0, "observer": 0, "c": 0.01} | change
    before = numbers(q)
    with pytest.raises(kind) as error:
        ops.observe_(*arguments.values(), False)
    assert str(error.value).startswith("observe_: ") and text in str(error.value)
    with pytest.raises(kind) as error:
        ops.quantize_activation(*arguments.values(), True, True, False)
    assert str(error.value).startswith("quantize_activation: ") and text in str(error.value)
    assert numbers(q) == before


def test_a_quantizer_is_given_whole_or_not_at_all() -> None:
    q = list(state().values())
    with pytest.raises(ValueError) as error:
        ops.quantize_activation(X, *q[:4], None, 0, 0, 0.01, True, True, False)
    assert str(error.value) == (
        "quantize_activation: 'min_val' must be given with max_val, observed, scale and "
        "zero_point, or none of the five, got 4 of them"
    )


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"scale": 0.0}, "'scale' must be finite and positive, got 0"),
        ({"scale": NAN}, "'scale' must be finite and positive, got nan"),
        ({"zero_point": 128}, "'zero_point' must be in [-128, 127], got 128"),
    ],
)
def test_a_state_that_is_no_grid_is_refused(values: dict[str, float], text: str) -> None:
    with pytest.raises(ValueError) as error:
        quantize(X, state(**values), observes=False)
    assert str(error.value) == f"quantize_activation: {text}"


@pytest.mark.parametrize("requires_grad", [False, True])
def test_opcheck(requires_grad: bool) -> None:
    x = torch.randn(3, 5, requires_grad=requires_grad)
    check = torch.library.opcheck
    check(ops.observe_.default, (x, *state().values(), 0, 0, 0.01, False))
    empty = (None,) * 5
    for op in (ops.quantize_activation.default, ops._quantize_activation_mask.default):
        check(op, (x, *state(observed=3).values(), 2, 0, 0.01, True, True, False))
        check(op, (x, *state().values(), 1, 1, 0.01, True, False, False))
        check(op, (x, *empty, 0, 0, 0.01, True, True, False))


@pytest.mark.parametrize("name", ["min_val", "max_val"])
@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("observer", [MOVING, MINMAX])
@pytest.mark.parametrize("call", [observe, quantize])
def test_a_stored_range_that_is_not_finite_is_refused_before_anything_moves(
    name: str, value: float, observer: int, call: Callable[..., object]
) -> None:
    q = state()
    observe(torch.tensor([-1.0, 2.0]), q)
    q[name].fill_(value)
    before = {key: tensor.clone() for key, tensor in q.items()}
    with pytest.raises(ValueError, match=f"observe: '{name}' must be finite, got -?(nan|inf)"):
        call(torch.tensor([-3.0, 4.0]), q, observer=observer)
    for key, tensor in q.items():
        torch.testing.assert_close(tensor, before[key], rtol=0, atol=0, equal_nan=True)
