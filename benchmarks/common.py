"""What every benchmark shares: interleaved timing, machine facts, tables, JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

import horizon_plugin

Call = Callable[[], Any]

_FLAGS = ("avx2", "avx512f", "avx_vnni", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")
_LIMITS = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "OMP_NUM_THREADS", "HORIZON_KERNEL")


def _repeats(call: Call, seconds: float) -> int:
    """How many calls make one sample of about `seconds`."""
    start = time.perf_counter()
    call()
    return max(1, int(seconds / max(time.perf_counter() - start, 1e-7)))


def interleave(calls: dict[str, Call], rounds: int, seconds: float = 0.02) -> dict[str, float]:
    """Seconds of one call of each: the minimum over rounds in which all of them take turns.

    Args:
        calls: name -> what to time. Each is called once first, which is not counted.
        rounds: how many samples of each; the order turns around from one to the next.
        seconds: about how long one sample takes; short calls are repeated within it.
    """
    names = list(calls)
    for call in calls.values():
        call()
    repeats = {name: _repeats(call, seconds) for name, call in calls.items()}
    best = dict.fromkeys(names, float("inf"))
    for i in range(rounds):
        for name in names if i % 2 == 0 else reversed(names):
            call, count = calls[name], repeats[name]
            start = time.perf_counter()
            for _ in range(count):
                call()
            best[name] = min(best[name], (time.perf_counter() - start) / count)
    return best


def _cpu_info() -> dict[str, str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return {}
    return {k.strip(): v.strip() for k, _, v in (line.partition(":") for line in lines)}


def machine() -> dict[str, Any]:
    """The facts that a figure depends on."""
    info = _cpu_info()
    flags = set(info.get("flags", "").split())
    return {
        "cpu": info.get("model name", platform.processor() or platform.machine()),
        "cores": os.cpu_count(),
        "instruction_sets": [flag for flag in _FLAGS if flag in flags],
        "limits": {name: os.environ[name] for name in _LIMITS if name in os.environ},
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "horizon_plugin": horizon_plugin.__version__,
    }


def describe(facts: dict[str, Any]) -> str:
    """`machine()` as text; says so where there is no VNNI."""
    sets = facts["instruction_sets"]
    text = (
        f"{facts['cpu']}, {facts['cores']} cores, {facts['threads']} threads; "
        f"{' '.join(sets) or 'no AVX2'}; torch {facts['torch']}"
    )
    if not {"avx512_vnni", "avx_vnni"} & set(sets):
        text += "\nno VNNI on this machine: int8 ratios are those of AVX2 or AVX-512 arithmetic"
    if facts["limits"]:
        text += "\n" + ", ".join(f"{k}={v}" for k, v in facts["limits"].items())
    return text


def table(title: str, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Text in columns: the first to the left, the others to the right."""
    body = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in [list(header), *body]) for i in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        first, *rest = (cell.ljust(w) for cell, w in zip(cells, widths, strict=True))
        return "  ".join([first, *(cell.strip().rjust(len(cell)) for cell in rest)]).rstrip()

    heading = line(header)
    return "\n".join([title, heading, "-" * len(heading), *map(line, body)]) + "\n"


def parser(description: str, rounds: int) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--threads", type=int, default=2, help="of torch (2)")
    options.add_argument("--rounds", type=int, default=rounds, help=f"interleaved ({rounds})")
    options.add_argument("--json", type=Path, help="also write the results there")
    return options


def finish(name: str, results: list[dict[str, Any]], path: Path | None) -> None:
    """Write the results with the machine's facts, if a path was given."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"benchmark": name, "machine": machine(), "results": results}
    path.write_text(json.dumps(content, indent=1) + "\n")
    print(f"results in {path}")
