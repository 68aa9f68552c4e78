"""Bandwidth of training's elementwise passes, next to `clone`, with fresh and with kept memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import torch
from common import Call, describe, finish, machine, parser
from kernels import rates_table
from torch import Tensor, nn

from horizon_plugin.quantization import (
    QuantStub,
    fuse_modules,
    get_default_qat_qconfig,
    prepare_qat,
)

ops = torch.ops.horizon

CHANNELS = 64

#: What malloc does with memory that is freed: gives it back, so that each large result costs page
#: faults, or keeps it.
MEMORY = {
    "fresh": {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"},
    "kept": {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 40)},
}

LAYOUTS = {"channels_last": torch.channels_last, "contiguous": torch.contiguous_format}


def _state() -> list[Tensor]:
    """min_val, max_val, observed, scale, zero_point of a quantizer."""
    int64, int32 = torch.zeros((), dtype=torch.int64), torch.zeros((), dtype=torch.int32)
    return [torch.zeros(()), torch.zeros(()), int64, torch.ones(()), int32]


def quantizing(x: Tensor) -> Iterator[tuple[str, int, Call]]:
    """Name, bytes read and written, call."""
    scale, zero = torch.tensor(0.02), torch.tensor(0, dtype=torch.int32)
    scales = torch.full((CHANNELS,), 0.02)
    zeros = torch.zeros(CHANNELS, dtype=torch.int32)
    size = 2 * 4 * x.numel()
    gradient = torch.randn_like(x)
    _, mask = ops._fake_quantize_per_tensor_mask(x, scale, zero, -128, 127)
    order = sorted(range(4), key=lambda d: -x.stride(d))
    yield "clone", size, x.clone
    yield "fake-quant", size, lambda: ops.fake_quantize_per_tensor(x, scale, zero, -128, 127)
    yield (
        "fake-quant, per channel",
        size,
        lambda: ops.fake_quantize_per_channel(x, scales, zeros, 1, -128, 127),
    )
    yield "fake-quant, backward", size, lambda: ops._mask_gradient(gradient, mask, order)
    yield (
        "torch fake-quant",
        size,
        lambda: torch.fake_quantize_per_tensor_affine(x, scale, zero, -128, 127),
    )
    state = _state()
    yield "observe", size // 2, lambda: ops.observe_(x, *state, 0, 0, 0.01, False)
    yield (
        "observe and fake-quant",
        size,
        lambda: ops.quantize_activation(x, *state, 0, 0, 0.01, True, True, False),
    )


def epilogue(x: Tensor, rounds: int) -> Iterator[tuple[str, float, int]]:
    """The fused op's own passes without its convolution: name, mean seconds, bytes to move.

    Forward: z is read for the statistics and again for batch norm, ReLU, range and fake-quant,
    which write the output. Backward: gradient and z are read for the sums and again to write dz.
    """
    group = nn.Sequential(
        QuantStub(),
        nn.Conv2d(CHANNELS, CHANNELS, 1, bias=False),
        nn.BatchNorm2d(CHANNELS),
        nn.ReLU(),
    )
    group.qconfig = get_default_qat_qconfig()
    model = prepare_qat(fuse_modules(group.train(), ["1", "2", "3"]), inplace=True)

    def step() -> None:
        model(x).backward(gradient)

    gradient = torch.randn_like(x)
    step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for _ in range(rounds):
            step()
    spent = {e.key: e.self_cpu_time_total / e.count / 1e6 for e in profile.key_averages()}
    yield "epilogue, forward", spent["horizon::_fused_forward"], 3 * 4 * x.numel()
    yield "epilogue, backward", spent["horizon::_fused_backward"], 5 * 4 * x.numel()


def _measure(mebibytes: list[int], rounds: int) -> list[dict[str, Any]]:
    results = []
    for size in mebibytes:
        side = round((size * 2**20 / 4 / CHANNELS / 16) ** 0.5)
        for layout, memory_format in LAYOUTS.items():
            x = torch.randn(16, CHANNELS, side, side).contiguous(memory_format=memory_format)
            mib = x.nbytes / 2**20
            title = f"{mib:.0f} MiB {layout}, {os.environ.get('HORIZON_BENCH_MEMORY')} memory"
            with torch.inference_mode():
                found = rates_table(title, quantizing(x), rounds)
            for name, seconds, moved in epilogue(x, rounds):
                found["seconds"][name] = seconds
                found["gigabytes_per_second"][name] = rate = moved / seconds / 1e9
                clone = found["gigabytes_per_second"]["clone"]
                print(
                    f"{name}: {seconds * 1e6:.0f} us, {rate:.1f} GB/s, {rate / clone:.2f} / clone"
                )
            print()
            results.append(found)
    return results


def main() -> None:
    """Run the benchmark in one process for each kind of memory."""
    options = parser(__doc__ or "", rounds=15)
    options.add_argument("--mebibytes", nargs="+", type=int, default=[1, 64])
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    if "HORIZON_BENCH_MEMORY" in os.environ:
        results = _measure(given.mebibytes, given.rounds)
        if given.json is not None:
            given.json.write_text(json.dumps(results))
        return
    print(describe(machine()) + "\n", flush=True)
    results = []
    part = None if given.json is None else given.json.with_suffix(".part")
    if part is not None:
        part.parent.mkdir(parents=True, exist_ok=True)
    for memory, limits in MEMORY.items():
        command = [sys.executable, __file__, "--threads", str(given.threads)]
        command += ["--rounds", str(given.rounds), "--mebibytes", *map(str, given.mebibytes)]
        command += [] if part is None else ["--json", str(part)]
        environment = {
            **os.environ,
            **limits,
            "HORIZON_BENCH_MEMORY": memory,
            "KINETO_LOG_LEVEL": "99",
        }
        subprocess.run(command, check=True, env=environment)
        if part is not None:
            results += json.loads(part.read_text())
            part.unlink()
    finish("training_kernels", results, given.json)


if __name__ == "__main__":
    main()
