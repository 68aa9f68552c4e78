"""The integer operations as PyTorch sees them: schema, Meta kernels, autograd, export."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from integer_reference import (
    CONV2D,
    CONV_TRANSPOSE2D,
    LINEAR,
    RELU,
    Group,
    codes,
    point,
    scalar,
    weights,
)

ops = torch.ops.horizon
Case = tuple[torch._ops.OpOverload, tuple[object, ...]]
GRID = (scalar(0.05), point(128))


def conv(base: int, **options: object) -> Case:
    if base == LINEAR:
        group = Group(codes(2, 5, 6), weights(4, 6), base=base, activation=RELU, **options)
    elif base == CONV2D:
        x = codes(2, 6, 7, 8).contiguous(memory_format=torch.channels_last)
        w = weights(4, 3, 3, 3)
        group = Group(x, w, padding=(1, 1, 0, 2), groups=2, activation=RELU, **options)
    else:
        x, w = codes(2, 6, 4, 5), weights(6, 2, 3, 3)
        group = Group(x, w, base=base, stride=(2, 2), output_padding=(1, 0), groups=3, **options)
    return ops.quantized_conv.default, group.arguments()


def binary(op: torch._ops.OpOverload, *tail: object) -> Case:
    return op, (codes(2, 3, 4, 5), *GRID, codes(3, 1, 1), *GRID, *GRID, RELU, *tail)


def affine() -> Case:
    q = codes(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    one = torch.ones(3, dtype=torch.float64)
    return ops.quantized_affine.default, (q, *GRID, one, one[:1], scalar(0.1), point(0), RELU)


def cat() -> Case:
    q = [codes(2, 3, 4, 5), codes(2, 1, 4, 5)]
    return ops.quantized_cat.default, (q, [GRID[0]] * 2, [GRID[1]] * 2, 1, scalar(0.1), point(0))


def avg_pool() -> Case:
    q = codes(2, 3, 8, 9).contiguous(memory_format=torch.channels_last)
    options = ([3, 3], [2, 2], [1, 1], True, False, None)
    return ops.quantized_avg_pool2d.default, (q, *GRID, *options, *GRID)


CASES: dict[str, Callable[[], Case]] = {
    "conv2d": lambda: conv(CONV2D),
    "conv2d skip": lambda: conv(CONV2D, skip=codes(2, 4, 6, 9)),
    "conv2d float": lambda: conv(CONV2D, y_scale=None, skip=codes(4, 1, 1)),
    "conv_transpose2d": lambda: conv(CONV_TRANSPOSE2D),
    "linear": lambda: conv(LINEAR),
    "linear float": lambda: conv(LINEAR, y_scale=None),
    "add": lambda: binary(ops.quantized_add.default, -1.0),
    "mul": lambda: binary(ops.quantized_mul.default),
    "affine": affine,
    "affine_scalar": lambda: (
        ops.quantized_affine_scalar.default,
        (codes(2, 3, 4, 5), *GRID, -0.5, 2.0, scalar(0.1), point(0), RELU),
    ),
    "cat": cat,
    "avg_pool2d": avg_pool,
    "adaptive_avg_pool2d": lambda: (
        ops.quantized_adaptive_avg_pool2d.default,
        (codes(2, 3, 8, 9), *GRID, [2, 3], *GRID),
    ),
    "mean": lambda: (
        ops.quantized_mean.default,
        (codes(2, 3, 8, 9), *GRID, [2, -1], True, *GRID),
    ),
}


def leaves(args: tuple[object, ...]) -> list[torch.Tensor]:
    found = [a for a in args if isinstance(a, torch.Tensor)]
    return found + [t for a in args if isinstance(a, list) for t in a if torch.is_tensor(t)]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_opcheck(name: str, requires_grad: bool) -> None:
    op, args = CASES[name]()
    if requires_grad:
        args = tuple(
            a.detach().clone().requires_grad_()
            if isinstance(a, torch.Tensor) and a.is_floating_point()
            else a
            for a in args
        )
    result = torch.library.opcheck(op, args)
    assert set(result.values()) == {"SUCCESS"}


@pytest.mark.parametrize("name", CASES)
def test_no_result_requires_grad(name: str) -> None:
    op, args = CASES[name]()
    for tensor in leaves(args):
        if tensor.is_floating_point():
            tensor.requires_grad_()
    try:
        with torch.enable_grad():
            assert not op(*args).requires_grad
    finally:
        for tensor in leaves(args):
            tensor.requires_grad_(False)


def to_meta(arg: object) -> object:
    if isinstance(arg, torch.Tensor):
        return arg.to("meta")
    return [to_meta(a) for a in arg] if isinstance(arg, list) else arg


@pytest.mark.parametrize("name", CASES)
def test_meta_kernels_tell_shape_dtype_and_strides(name: str) -> None:
    op, args = CASES[name]()
    real, meta = op(*args), op(*(to_meta(a) for a in args))
    assert (meta.shape, meta.dtype, meta.stride()) == (real.shape, real.dtype, real.stride())


@pytest.mark.parametrize("name", CASES)
def test_inputs_stay_as_they_are(name: str) -> None:
    op, args = CASES[name]()
    before = [t.clone() for t in leaves(args)]
    first = op(*args)
    assert torch.equal(first, op(*args))
    for tensor, old in zip(leaves(args), before, strict=True):
        assert torch.equal(tensor, old)


@pytest.mark.parametrize("name", ["conv2d skip", "linear float", "add", "cat", "mean"])
def test_operations_export(name: str) -> None:
    op, args = CASES[name]()
    tensors = leaves(args)

    class Call(torch.nn.Module):
        def forward(self, inputs: list[torch.Tensor]) -> torch.Tensor:
            rest = iter(inputs)

            def fill(arg: object) -> object:
                if isinstance(arg, torch.Tensor):
                    return next(rest)
                return [fill(a) for a in arg] if isinstance(arg, list) else arg

            heads = [next(rest) if isinstance(a, torch.Tensor) else a for a in args]
            return op(*(fill(a) if isinstance(a, list) else a for a in heads))

    program = torch.export.export(Call(), (tensors,))
    assert torch.equal(program.module()(tensors), op(*args))
