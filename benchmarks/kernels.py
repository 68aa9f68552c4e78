"""Bandwidth of the integer operators that are not convolutions, next to `clone`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from common import Call, describe, finish, interleave, machine, parser, table
from torch import Tensor

import horizon_plugin  # noqa: F401  (registers torch.ops.horizon)

ops = torch.ops.horizon

#: Channels and image side of a layer's activations: as large as ResNet's and MobileNet's.
SHAPES = ((64, 56), (96, 112), (512, 7))


def _scalar(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float32)


def _point(value: int) -> Tensor:
    return torch.tensor(value, dtype=torch.int32)


A, B, Y = (_scalar(0.03), _point(128)), (_scalar(0.05), _point(120)), (_scalar(0.06), _point(128))


def _codes(batch: int, channels: int, side: int, layout: torch.memory_format) -> Tensor:
    codes = torch.randint(0, 256, (batch, channels, side, side), dtype=torch.uint8)
    return codes.contiguous(memory_format=layout)


def on_codes(batch: int, channels: int, side: int, layout: Any) -> Iterator[tuple[str, int, Call]]:
    """Name, bytes read and written, call: the integer single ops on one shape."""
    x, y = (_codes(batch, channels, side, layout) for _ in range(2))
    n = x.numel()
    one = torch.ones(channels, dtype=torch.float64)
    f = x.to(torch.float32, memory_format=torch.preserve_format)
    pixels = batch * channels
    yield "clone", 2 * n, x.clone
    yield "add", 3 * n, lambda: ops.quantized_add(x, *A, y, *B, *Y, 0, 1.0)
    yield "mul", 3 * n, lambda: ops.quantized_mul(x, *A, y, *B, *Y, 0)
    yield "affine", 2 * n, lambda: ops.quantized_affine(x, *A, one[:1], one[:1], *Y, 2)
    yield "affine, per channel", 2 * n, lambda: ops.quantized_affine(x, *A, one, one, *Y, 0)
    grids = ([A[0], B[0]], [A[1], B[1]])
    yield "cat", 4 * n, lambda: ops.quantized_cat([x, y], *grids, 1, *Y)
    same = ([A[0], A[0]], [A[1], A[1]])
    yield "cat, one grid", 4 * n, lambda: ops.quantized_cat([x, y], *same, 1, *A)
    window = ([2, 2], [2, 2], [0, 0])
    pooled = n + n // 4
    yield (
        "avg_pool 2x2",
        pooled,
        lambda: ops.quantized_avg_pool2d(x, *A, *window, False, True, None, *Y),
    )
    yield "max_pool 2x2", pooled, lambda: ops.quantized_max_pool2d(x, *window, [1, 1], False)
    third = ([3, 3], [2, 2], [1, 1])
    yield (
        "avg_pool 3x3 / 2",
        pooled,
        lambda: ops.quantized_avg_pool2d(x, *A, *third, False, True, None, *Y),
    )
    yield "max_pool 3x3 / 2", pooled, lambda: ops.quantized_max_pool2d(x, *third, [1, 1], False)
    yield "global pool", n + pixels, lambda: ops.quantized_adaptive_avg_pool2d(x, *A, [1, 1], *Y)
    yield "mean of pixels", n + pixels, lambda: ops.quantized_mean(x, *A, [2, 3], False, *Y)
    yield "dequantize", 5 * n, lambda: ops.dequantize(x, *A, None)
    yield "quantize", 5 * n, lambda: ops.quantize(f, *Y)


def rates_table(title: str, cases: Any, rounds: int) -> dict[str, Any]:
    """Print a table of (name, bytes, call), in GB/s, and return its figures."""
    found = list(cases)
    times = interleave({name: call for name, _, call in found}, rounds, 0.005)
    rates = {name: size / times[name] / 1e9 for name, size, _ in found}
    rows = (
        (k, f"{times[k] * 1e6:.1f}", f"{rates[k]:.1f}", f"{rates[k] / rates['clone']:.2f}")
        for k in rates
    )
    print(table(title, ("", "us", "GB/s", "/ clone"), rows))
    return {"title": title, "seconds": times, "gigabytes_per_second": rates}


def main() -> None:
    """Run the benchmark."""
    options = parser(__doc__ or "", rounds=20)
    options.add_argument("--batch", nargs="+", type=int, default=[1, 16])
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    print(describe(machine()) + "\n")
    results = []
    with torch.inference_mode():
        for channels, side in SHAPES:
            for batch in given.batch:
                for layout in (torch.channels_last, torch.contiguous_format):
                    name = str(layout).removeprefix("torch.").removesuffix("_format")
                    title = f"codes, {batch}x{channels}x{side}x{side} {name}"
                    cases = on_codes(batch, channels, side, layout)
                    results.append(rates_table(title, cases, given.rounds))
    finish("kernels", results, given.json)


if __name__ == "__main__":
    main()
