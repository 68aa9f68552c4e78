"""Calls every operator of torch.ops.horizon with arguments that are wrong in one to three places.

A program of its own, `op_fuzz.py SEED CALLS`, since a crash ends it. It prints how many calls
returned and raised, and exits with 1 where an error is an internal one or a failed call changed an
argument.
"""

from __future__ import annotations

import faulthandler
import random
import resource
import sys
from collections.abc import Callable

import torch
from torch import Tensor

import horizon_plugin  # noqa: F401  (registers torch.ops.horizon)

ops = torch.ops.horizon
EXPECTED = (ValueError, TypeError, RuntimeError, IndexError, NotImplementedError, OverflowError)
#: Enough for torch and every legal call here; an absurd size fails to allocate instead of swapping.
ADDRESS_SPACE = 12 << 30
INTEGERS = (-(2**63), -(2**31), -2, -1, 0, 1, 2, 3, 7, 255, 256, 2**31 - 1, 2**31, 2**40, 2**63 - 1)
NUMBERS = (float("nan"), float("inf"), -float("inf"), -1.0, 0.0, 1e-45, 1e-30, 0.5, 1e38, 1e300)
DTYPES = (torch.uint8, torch.int8, torch.int32, torch.int64, torch.bool, torch.float16)
DTYPES += (torch.bfloat16, torch.float32, torch.float64)
OTHERS = ("text", {}, object(), [None], -1, 2.5, [], [1, 2, 3, 4, 5, 6, 7], True)


def scalar(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float32)


def point(value: int) -> Tensor:
    return torch.tensor(value, dtype=torch.int32)


def codes(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8)


def weights(*shape: int) -> Tensor:
    return torch.randint(-127, 128, shape, dtype=torch.int8)


def state() -> list[Tensor]:
    return [scalar(-1.0), scalar(1.0), torch.tensor(1), scalar(0.1), point(128)]


def legal_calls() -> dict[str, Callable[[], list[object]]]:
    """For every operator, fresh arguments that it accepts."""
    grid = [scalar(0.05), point(128)]
    conv = [[1, 1], [1, 1], [1, 1], [0, 0], 2, 1]
    vectors = [torch.rand(4) / 64, torch.ones(4).double(), torch.zeros(4).double()]
    packed = ops.pack_weight(weights(4, 3, 3, 3), 0, [1, 1], [1, 1], 2)
    quantizer = [1, 0, 0.01, True, True, False]
    none = [None] * 5

    def image() -> Tensor:
        return codes(2, 6, 5, 7)

    def fused() -> list[object]:
        x = (torch.randint(-64, 64, (2, 6, 5, 7)) / 16).float()
        norm = [torch.ones(4), torch.zeros(4), torch.zeros(4), torch.ones(4), torch.tensor(0)]
        skip = [torch.randn(2, 4, 5, 7), None, None]
        options = [True, True, 0.1, 1e-5, 1, True, False]
        return [x, None, None, torch.randn(4, 3, 3, 3), torch.randn(4), *norm, *skip, *state(),
                0, *conv[:5], *options, *quantizer]  # fmt: skip

    single = {
        "quantize": lambda: [torch.randn(2, 3, 5), *grid],
        "dequantize": lambda: [codes(2, 3, 5), *grid, None],
        "quantized_add": lambda: [image(), *grid, codes(6, 1, 1), *grid, *grid, 1, -1.0],
        "quantized_mul": lambda: [image(), *grid, image(), *grid, *grid, 2],
        "quantized_affine": lambda: [
            image(), *grid, torch.ones(6).double(), torch.ones(1).double(), *grid, 1],
        "quantized_affine_scalar": lambda: [image(), *grid, 0.5, 1.0, *grid, 1],
        "quantized_cat": lambda: [[image(), codes(2, 1, 5, 7)], [grid[0]] * 2, [grid[1]] * 2,
                                  1, *grid],
        "quantized_avg_pool2d": lambda: [
            image(), *grid, [3, 3], [2, 2], [1, 1], True, False, None, *grid],
        "quantized_adaptive_avg_pool2d": lambda: [image(), *grid, [2, 3], *grid],
        "quantized_mean": lambda: [image(), *grid, [2, 3], True, *grid],
        "quantized_lookup": lambda: [image(), codes(256)],
        "quantized_max_pool2d": lambda: [image(), [3, 3], [2, 2], [1, 1], [1, 1], True],
    }  # fmt: skip
    convolutions = {
        "quantized_conv": lambda: [
            image(), *grid, weights(4, 3, 3, 3), *vectors, codes(2, 4, 5, 7), *grid, *grid, 0,
            *conv],
        "quantized_conv_packed": lambda: [
            image(), *grid, packed.clone(), [4, 3, 3, 3], *vectors, None, None, None, *grid, 0,
            *conv],
        "pack_weight": lambda: [weights(4, 3, 3, 3), 0, [1, 1], [1, 1], 2],
        "unpack_weight": lambda: [packed.clone(), [4, 3, 3, 3], 0, [1, 1], [1, 1], 2],
        "weight_scale": lambda: [torch.randn(4, 3, 3, 3), 1, 2],
        "quantize_weight": lambda: [torch.randn(4, 3, 3, 3), torch.rand(4) + 0.1, 0, 1],
        "fake_quantize_weight": lambda: [torch.randn(4, 3, 3, 3), 0, 2],
        "fold_batch_norm": lambda: [None, *(torch.rand(4) for _ in range(4)), 1e-5, 4],
    }  # fmt: skip
    training = {
        "fake_quantize_per_tensor": lambda: [torch.randn(2, 3, 5), *grid, 0, 255],
        "fake_quantize_per_channel": lambda: [
            torch.randn(2, 3, 5), torch.rand(3) + 0.1, torch.zeros(3).int(), 1, -128, 127],
        "observe_": lambda: [torch.randn(40), *state(), 2, 0, 0.01, False],
        "quantize_activation": lambda: [torch.randn(2, 3, 5), *state(), *quantizer],
        "straight_through": lambda: [torch.randn(5), torch.randn(5)],
        "fused": fused,
        "fused without quantizer": lambda: [*fused()[:13], *none, *fused()[18:]],
    }  # fmt: skip
    return single | convolutions | training


def other_tensor(rng: random.Random, x: Tensor) -> object:
    """A tensor that differs from `x` in one respect, or none."""
    if not tensors(x):
        return None
    shape = list(x.shape)
    if shape:
        d = rng.randrange(len(shape))
        shape[d] = rng.choice((0, 1, shape[d] + 1, max(shape[d] - 1, 0)))
    return rng.choice((
        lambda: x.to(rng.choice(DTYPES)),
        lambda: torch.zeros(shape, dtype=x.dtype),
        lambda: x.unsqueeze(rng.randrange(x.dim() + 1)),
        lambda: x.flatten(),
        lambda: x.expand(3, *x.shape),
        lambda: x.transpose(0, -1) if x.dim() else x.expand(2),
        lambda: x.repeat_interleave(2, -1)[..., ::2] if x.dim() else x.clone(),
        lambda: torch.empty(0, dtype=x.dtype),
        lambda: torch.full_like(x, rng.choice((0, 1, 127))),
        lambda: torch.full_like(x, rng.choice(NUMBERS), dtype=torch.float64).to(x.dtype),
        lambda: x.to("meta"),
        lambda: x.to_sparse(),
        lambda: x.to(torch.complex64),
        lambda: x.float().requires_grad_(),
        lambda: None,
        lambda: rng.choice(OTHERS),
    ))()  # fmt: skip


def other(rng: random.Random, value: object) -> object:
    """Something else in the place of `value`, mostly of its type."""
    if isinstance(value, Tensor):
        return other_tensor(rng, value)
    if isinstance(value, list):
        changed = list(value)
        if changed and rng.random() < 0.8:
            i = rng.randrange(len(changed))
            changed[i] = other(rng, changed[i])
            return changed
        return rng.choice((changed[1:], changed * 2, [], None, *OTHERS))
    if rng.random() < 0.1:
        return rng.choice(OTHERS)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice(INTEGERS)
    if isinstance(value, float):
        return rng.choice(NUMBERS)
    return rng.choice((torch.zeros(()), torch.zeros(4), 0, 1, codes(2, 4, 5, 7)))


def tensors(values: object) -> list[Tensor]:
    """The strided tensors among the arguments that hold data."""
    if isinstance(values, Tensor):
        plain = values.layout == torch.strided and not values.is_meta and not values.is_complex()
        return [values] if plain else []
    return [t for v in values for t in tensors(v)] if isinstance(values, list) else []


def same(a: Tensor, b: Tensor) -> bool:
    return torch.equal(torch.nan_to_num(a.detach()), torch.nan_to_num(b.detach()))


def try_call(name: str, args: list[object]) -> str | None:
    """None where the call returned, else what it raised; SystemExit where it misbehaved."""
    before = [t.clone() for t in tensors(args)]
    try:
        getattr(ops, name.split()[0])(*args)
    except EXPECTED as error:
        message = str(error)
        if "INTERNAL ASSERT" in message or not message:
            sys.exit(f"{name}: internal error\n{args}\n{message}")
        if not all(map(same, tensors(args), before)):
            sys.exit(f"{name}: the failed call changed an argument\n{args}\n{message}")
        return message
    return None


def main() -> None:
    """Run the calls."""
    seed, calls = map(int, sys.argv[1:])
    faulthandler.enable()
    faulthandler.dump_traceback_later(60, exit=True)
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    rng = random.Random(seed)
    legal = legal_calls()
    for name, make in legal.items():
        error = try_call(name, make())
        if error is not None:
            sys.exit(f"{name}: the legal call raised {error}")
    returned = 0
    for _ in range(calls):
        for name, make in legal.items():
            args = make()
            for _ in range(rng.choice((1, 1, 2, 3))):
                i = rng.randrange(len(args))
                args[i] = other(rng, args[i])
            returned += try_call(name, args) is None
    total = calls * len(legal)
    print(f"{returned} of {total} calls returned; operators: {' '.join(sorted(legal))}")


if __name__ == "__main__":
    main()
