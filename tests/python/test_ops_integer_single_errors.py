"""What the single integer operations refuse, and how they say it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from integer_reference import codes, point, scalar

ops = torch.ops.horizon
Call = Callable[[], object]

F64 = {"dtype": torch.float64}
NAN, INF = float("nan"), float("inf")
BIG = 2**62
GRID = (scalar(0.1), point(128))
Q = codes(2, 3, 4, 5)
ONE, NONE = torch.ones(1, **F64), torch.zeros(1, **F64)


def add(a: object = Q, b: object = Q, alpha: float = 1.0, **over: object) -> object:
    grid_a, grid_b, grid_y = (over.get(k, GRID) for k in ("a_grid", "b_grid", "grid"))
    return ops.quantized_add(a, *grid_a, b, *grid_b, *grid_y, over.get("activation", 0), alpha)


def mul(a: object = Q, b: object = Q, **over: object) -> object:
    grid_a, grid_b, grid_y = (over.get(k, GRID) for k in ("a_grid", "b_grid", "grid"))
    return ops.quantized_mul(a, *grid_a, b, *grid_b, *grid_y, over.get("activation", 0))


def affine(q: object = Q, factor: object = ONE, offset: object = NONE, **over: object) -> object:
    grid_q, grid_y = (over.get(k, GRID) for k in ("q_grid", "grid"))
    return ops.quantized_affine(q, *grid_q, factor, offset, *grid_y, over.get("activation", 0))


def affine_scalar(
    q: object = Q, factor: float = 1.0, offset: float = 0.0, **over: object
) -> object:
    grid_q, grid_y = (over.get(k, GRID) for k in ("q_grid", "grid"))
    rest = (factor, offset, *grid_y, over.get("activation", 0))
    return ops.quantized_affine_scalar(q, *grid_q, *rest)


def cat(q: object = (Q, Q), dim: int = 1, **over: object) -> object:
    scales = over.get("scales", [GRID[0]] * 2)
    zero_points = over.get("zero_points", [GRID[1]] * 2)
    return ops.quantized_cat(q, scales, zero_points, dim, *over.get("grid", GRID))


def pool(q: object = Q, **over: object) -> object:
    options = {"kernel": [2, 2], "stride": [], "padding": [0, 0], "divisor": None} | over
    return ops.quantized_avg_pool2d(
        q,
        *GRID,
        options["kernel"],
        options["stride"],
        options["padding"],
        False,
        True,
        options["divisor"],
        *over.get("grid", GRID),
    )


def adaptive(q: object = Q, size: object = (1, 1), **over: object) -> object:
    return ops.quantized_adaptive_avg_pool2d(q, *GRID, size, *over.get("grid", GRID))


def mean(q: object = Q, dim: object = (2, 3), **over: object) -> object:
    return ops.quantized_mean(q, *over.get("q_grid", GRID), dim, False, *over.get("grid", GRID))


TINY, HUGE = (scalar(2e-38), point(0)), (scalar(3e38), point(0))

ERRORS: list[tuple[Call, type[Exception], str]] = [
    (lambda: add(Q.float()), TypeError, "quantized_add: 'a' must be uint8, got float32"),
    (lambda: add(Q, Q.int()), TypeError, "quantized_add: 'b' must be uint8, got int32"),
    (
        lambda: add(Q, codes(7)),
        ValueError,
        "quantized_add: 'b' must be of a shape that broadcasts with that of 'a' [2, 3, 4, 5]",
    ),
    (lambda: add(alpha=2.0), ValueError, "quantized_add: 'alpha' must be 1 or -1, got 2"),
    (lambda: add(alpha=NAN), ValueError, "quantized_add: 'alpha' must be 1 or -1, got nan"),
    (lambda: add(activation=5), ValueError, "quantized_add: 'activation' must be 0 (none), 1"),
    (
        lambda: add(a_grid=(scalar(0.0), point(0))),
        ValueError,
        "quantized_add: 'a_scale' must be finite and positive, got 0",
    ),
    (
        lambda: add(b_grid=(scalar(1.0), point(300))),
        ValueError,
        "quantized_add: 'b_zero_point' must be in [0, 255], got 300",
    ),
    (
        lambda: add(grid=(torch.ones(3), point(0))),
        ValueError,
        "quantized_add: 'scale' must be a tensor with one element, got shape [3]",
    ),
    (
        lambda: add(a_grid=HUGE, grid=TINY),
        ValueError,
        "quantized_add: a's scale over the result's must be finite in fp32, got inf",
    ),
    (
        lambda: add(b_grid=HUGE, grid=TINY, alpha=-1.0),
        ValueError,
        "quantized_add: b's scale over the result's must be finite in fp32, got -inf",
    ),
    (
        lambda: add(Q, Q.to("meta")),
        ValueError,
        "quantized_add: 'b' must be on the device of 'a' (cpu), got meta",
    ),
    (lambda: mul(Q.bool()), TypeError, "quantized_mul: 'a' must be uint8, got bool"),
    (
        lambda: mul(Q, codes(2, 3)),
        ValueError,
        "quantized_mul: 'b' must be of a shape that broadcasts",
    ),
    (lambda: mul(activation=-1), ValueError, "quantized_mul: 'activation' must be"),
    (
        lambda: mul(a_grid=HUGE, b_grid=HUGE),
        ValueError,
        "quantized_mul: the product of a's and b's scales over the result's must be finite",
    ),
    (lambda: affine(Q.char()), TypeError, "quantized_affine: 'q' must be uint8, got int8"),
    (
        lambda: affine(factor=torch.ones(1)),
        TypeError,
        "quantized_affine: 'factor' must be float64, got float32",
    ),
    (
        lambda: affine(offset=torch.ones(4, **F64)),
        ValueError,
        "quantized_affine: 'offset' must be of shape [3], got [4]",
    ),
    (
        lambda: affine(factor=torch.ones(3, 1, **F64)),
        ValueError,
        "quantized_affine: 'factor' must be of shape [3], got [3, 1]",
    ),
    (
        lambda: affine(codes(4), factor=torch.ones(4, **F64)),
        ValueError,
        "quantized_affine: 'factor' must be of one entry where 'q' has no channels, got [4]",
    ),
    (
        lambda: affine(factor=torch.tensor([1.0, NAN, 1.0], **F64)),
        ValueError,
        "quantized_affine: the multiplier of channel 1 must be finite in fp32, got nan",
    ),
    (
        lambda: affine(offset=torch.tensor(INF, **F64)),
        ValueError,
        "quantized_affine: the offset must be finite in fp32, got inf",
    ),
    (lambda: affine(activation=3), ValueError, "quantized_affine: 'activation' must be"),
    (
        lambda: affine_scalar(Q.char()),
        TypeError,
        "quantized_affine_scalar: 'q' must be uint8, got int8",
    ),
    (
        lambda: affine_scalar(factor=NAN),
        ValueError,
        "quantized_affine_scalar: the multiplier must be finite in fp32, got nan",
    ),
    (
        lambda: affine_scalar(offset=INF),
        ValueError,
        "quantized_affine_scalar: the offset must be finite in fp32, got inf",
    ),
    (
        lambda: affine_scalar(activation=-1),
        ValueError,
        "quantized_affine_scalar: 'activation' must be",
    ),
    (
        lambda: cat([]),
        ValueError,
        "quantized_cat: 'q' must be at least one tensor, got an empty list",
    ),
    (
        lambda: cat([Q]),
        ValueError,
        "quantized_cat: 'scales' must be one for each of the 1 tensors, got 2",
    ),
    (
        lambda: cat(zero_points=[GRID[1]]),
        ValueError,
        "quantized_cat: 'zero_points' must be one for each of the 2 tensors, got 1",
    ),
    (lambda: cat([Q, Q.float()]), TypeError, "quantized_cat: 'q[1]' must be uint8, got float32"),
    (lambda: cat([Q, codes(2, 3, 4)]), ValueError, "quantized_cat: 'q[1]' must be 4-dimensional"),
    (
        lambda: cat([Q, codes(2, 3, 4, 6)]),
        ValueError,
        "quantized_cat: 'q[1]' must be shaped as q[0] [2, 3, 4, 5] but in dimension 1",
    ),
    (lambda: cat(dim=4), ValueError, "quantized_cat: 'dim' must be in [-4, 3], got 4"),
    (lambda: cat(dim=-5), ValueError, "quantized_cat: 'dim' must be in [-4, 3], got -5"),
    (
        lambda: cat([codes(), codes()], 0),
        ValueError,
        "quantized_cat: 'q[0]' must be at least 1-dimensional, got []",
    ),
    (
        lambda: cat(scales=[GRID[0], scalar(NAN)]),
        ValueError,
        "quantized_cat: 'scales[1]' must be finite and positive, got nan",
    ),
    (
        lambda: cat(zero_points=[point(-3), GRID[1]]),
        ValueError,
        "quantized_cat: 'zero_points[0]' must be in [0, 255], got -3",
    ),
    (
        lambda: cat(scales=[GRID[0], HUGE[0]], grid=TINY),
        ValueError,
        "quantized_cat: 'scales[1]' over the result's scale must be finite in fp32, got inf",
    ),
    (
        lambda: pool(codes(4, 5)),
        ValueError,
        "quantized_avg_pool2d: 'q' must be [channels, height, width]",
    ),
    (lambda: pool(Q.float()), TypeError, "quantized_avg_pool2d: 'q' must be uint8, got float32"),
    (lambda: pool(codes(2, 3, 0, 5)), ValueError, "'q' must be non-empty but for the batch"),
    (lambda: pool(codes(2, 0, 4, 5)), ValueError, "'q' must be non-empty but for the batch"),
    (lambda: pool(kernel=[]), ValueError, "'kernel_size' must be of one or two entries, got []"),
    (lambda: pool(kernel=[0, 1]), ValueError, "'kernel_size' must be at least 1"),
    (lambda: pool(kernel=[-1]), ValueError, "'kernel_size' must be at least 1"),
    (
        lambda: pool(kernel=[5, 2]),
        ValueError,
        "'kernel_size' must be no larger than 'q' with its padding",
    ),
    (
        lambda: pool(kernel=[BIG]),
        ValueError,
        "'kernel_size' must be at least 1 and at most 2147483647",
    ),
    (lambda: pool(stride=[0]), ValueError, "'stride' must be at least 1"),
    (lambda: pool(stride=[1, 2, 3]), ValueError, "'stride' must be of one or two entries"),
    (
        lambda: pool(padding=[2, 0]),
        ValueError,
        "'padding' must be at most half the kernel, got [2, 0]",
    ),
    (lambda: pool(padding=[-1, 0]), ValueError, "'padding' must be at least 0"),
    (lambda: pool(divisor=0), ValueError, "'divisor_override' must be not zero, got 0"),
    (
        lambda: adaptive(size=[1]),
        ValueError,
        "quantized_adaptive_avg_pool2d: 'output_size' must be of two entries, got [1]",
    ),
    (lambda: adaptive(size=[-1, 1]), ValueError, "'output_size' must be at least 0"),
    (lambda: adaptive(Q.long()), TypeError, "'q' must be uint8, got int64"),
    (lambda: mean(Q.double()), TypeError, "quantized_mean: 'q' must be uint8, got float64"),
    (lambda: mean(dim=[4]), ValueError, "quantized_mean: 'dim' must be in [-4, 3], got 4"),
    (lambda: mean(dim=[1, -3]), ValueError, "quantized_mean: 'dim' must be free of repetitions"),
    (
        lambda: mean(codes(3, 0), dim=[1]),
        ValueError,
        "quantized_mean: 'q' must be non-empty in the dimensions that are averaged, got [3, 0]",
    ),
    (lambda: mean(codes(0), dim=[]), ValueError, "'q' must be non-empty in the dimensions"),
    (
        lambda: mean(q_grid=HUGE, grid=TINY),
        ValueError,
        "quantized_mean: q's scale over the result's must be finite in fp32, got inf",
    ),
]


@pytest.mark.parametrize(
    ("call", "error", "text"), [pytest.param(*row, id=str(i)) for i, row in enumerate(ERRORS)]
)
def test_single_operations_say_what_is_wrong(call: Call, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        call()
    assert text in str(caught.value)


def test_the_arguments_of_the_single_operations_are_good() -> None:
    for call in (add, mul, affine, affine_scalar, cat, pool, adaptive, mean):
        assert call().dtype == torch.uint8  # type: ignore[attr-defined]


def test_results_too_large_for_memory_are_an_error() -> None:
    with pytest.raises(RuntimeError):
        adaptive(size=[2**31 - 1, 2**31 - 1])
