"""QAT steps, int8 inference and kernels on a GPU, in one table.

Steps are compared with the float step in the same precision and with torch.ao's QAT, inference with
the float model in fp16, kernels with the bandwidth of a copy. `--device cpu --quick` runs the same
code in small on any machine.
"""

from __future__ import annotations

import argparse
import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from common import Call, finish, interleave, machine, parser, table
from models import INFERENCE
from stages import converted, settle, traced
from training import build

Row = tuple[str, str, str, str, str]

FORMS = ("float channels_last", "QAT", "torch.ao QAT")
#: name -> how a step computes.
PRECISIONS: dict[str, Callable[[str], Any]] = {
    "TF32": lambda device: nullcontext(),
    "bf16 AMP": lambda device: torch.autocast(device, torch.bfloat16),
}
_LAUNCHES = 20


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _finished(call: Call, device: str, launches: int = 1) -> Call:
    """`call`, so many times, and nothing of it is left to do."""

    def run() -> None:
        for _ in range(launches):
            call()
        _wait(device)

    return run


def _step_of(form: str, name: str, batch: int, precision: str, device: str) -> Call:
    model, x, labels = build(form, name, batch)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        with PRECISIONS[precision](device):
            loss = F.cross_entropy(model(x).float(), labels)
        loss.backward()
        optimizer.step()

    return _finished(step, device)


def _peak(step: Call, device: str) -> int:
    """Bytes that the second step holds at most; 0 where nothing counts them."""
    step()
    if device != "cuda":
        return 0
    gc.collect()
    torch.cuda.reset_peak_memory_stats()
    step()
    return torch.cuda.max_memory_allocated()


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:.0f} MiB" if size else "-"


def training_rows(name: str, given: argparse.Namespace) -> Iterator[Row]:
    """A step of each form in each precision, next to the float step."""
    for precision in PRECISIONS:
        steps: dict[str, Call] = {}
        peaks: dict[str, int] = {}
        for form in FORMS:
            # Memory is counted while no other model lives.
            try:
                peaks[form] = _peak(
                    _step_of(form, name, given.batch, precision, given.device), given.device
                )
                steps[form] = _step_of(form, name, given.batch, precision, given.device)
            except (ImportError, RuntimeError) as reason:
                if form != "torch.ao QAT":
                    raise
                yield (f"{name} step, {form}, {precision}", "-", "left out", "", _short(reason))
        times = interleave(steps, given.rounds, seconds=0.0)
        base = FORMS[0]
        for form, seconds in times.items():
            yield (
                f"{name} step, {form}, {precision}",
                f"{seconds * 1e3:.2f} ms",
                f"{seconds / times[base]:.3f} x float",
                _mebibytes(peaks[form]),
                f"{peaks[form] / peaks[base]:.3f} x float" if peaks[base] else "",
            )


def _short(reason: BaseException) -> str:
    return f"{type(reason).__name__}: {str(reason).splitlines()[0][:60] if str(reason) else ''}"


def inference_rows(name: str, given: argparse.Namespace) -> Iterator[Row]:
    """int8 next to the float model in half precision."""
    factory, side = INFERENCE[name]
    side = 64 if given.quick else side
    half = torch.float16 if given.device == "cuda" else torch.bfloat16
    torch.manual_seed(0)
    x = torch.randn(given.batch, 3, side, side).contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        model = settle(factory().to(memory_format=torch.channels_last), x)
        int8 = traced(converted(model, x), x, freeze=True)
        halved, x_half = model.to(half), x.to(half)
        reference = traced(halved, x_half, freeze=True)
        times = interleave(
            {
                "int8": _finished(lambda: int8(x), given.device),
                "half": _finished(lambda: reference(x_half), given.device),
            },
            given.rounds,
            seconds=0.0,
        )
    yield (
        f"{name} inference, int8",
        f"{times['int8'] * 1e3:.2f} ms",
        f"{times['int8'] / times['half']:.3f} x {str(half).removeprefix('torch.')}",
        "-",
        "",
    )


def _float_kernels(batch: int, channels: int, side: int) -> Iterator[tuple[str, int, Call]]:
    """Name, bytes, call: the elementwise operators of training."""
    ops = torch.ops.horizon
    x = torch.randn(batch, channels, side, side).contiguous(memory_format=torch.channels_last)
    n = x.numel()
    state = [torch.tensor(v) for v in (-1.0, 1.0)] + [torch.tensor(1)]
    grid = [torch.tensor(0.01), torch.tensor(0, dtype=torch.int32)]
    settings = (0, 0, 0.01, True, True, False)
    yield "fake-quant", 8 * n, lambda: ops.fake_quantize_per_tensor(x, *grid, -128, 127)
    yield "observe", 4 * n, lambda: ops.observe_(x, *state, *grid, 0, 0, 0.01, False)
    # The range is known only when all of x was read: x is read twice.
    yield (
        "observe and fake-quant",
        12 * n,
        lambda: ops.quantize_activation(x, *state, *grid, *settings),
    )


def kernel_rows(given: argparse.Namespace) -> Iterator[Row]:
    """Every elementwise kernel's bytes a second next to those of a large copy."""
    from kernels import on_codes

    shape = (2, 16, 9) if given.quick else (256, 64, 56)
    source = torch.empty(1 << 20 if given.quick else 1 << 29, dtype=torch.uint8)
    target = torch.empty_like(source)
    with torch.inference_mode():
        copy_time = interleave(
            {"copy": _finished(lambda: target.copy_(source), given.device)}, given.rounds, 0.0
        )["copy"]
        bandwidth = 2 * source.numel() / copy_time
        yield "copy of a large tensor", f"{bandwidth / 1e9:.0f} GB/s", "100 %", "-", ""
        cases = [
            *on_codes(*shape, torch.channels_last),
            *_float_kernels(*shape),
        ]
        for name, size, call in cases:
            run = _finished(call, given.device, _LAUNCHES)
            rate = _LAUNCHES * size / interleave({name: run}, given.rounds, 0.0)[name]
            yield (
                f"kernel: {name}",
                f"{rate / 1e9:.0f} GB/s",
                f"{100 * rate / bandwidth:.0f} % of copy",
                "-",
                "",
            )


def _rows(given: argparse.Namespace) -> tuple[list[Row], list[str]]:
    """All rows, and what failed; one failure leaves the others."""
    parts: dict[str, Callable[[], Iterator[Row]]] = {}
    for name in given.training:
        parts[f"{name} step"] = lambda name=name: training_rows(name, given)
    for name in given.inference:
        parts[f"{name} inference"] = lambda name=name: inference_rows(name, given)
    parts["kernels"] = lambda: kernel_rows(given)
    rows: list[Row] = []
    failed = []
    for title, part in parts.items():
        try:
            for row in part():
                rows.append(row)
        except (RuntimeError, ValueError, NotImplementedError) as reason:
            failed.append(f"{title}: {_short(reason)}")
        gc.collect()
    return rows, failed


def main() -> None:
    """Run the benchmark."""
    options = parser(__doc__ or "", rounds=20)
    options.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    options.add_argument("--quick", action="store_true", help="small: shows that all of it runs")
    options.add_argument("--batch", type=int, default=128)
    options.add_argument("--training", nargs="*", default=["resnet18", "mobilenet_v2", "unet"])
    options.add_argument("--inference", nargs="*", default=list(INFERENCE))
    given = options.parse_args()
    if given.quick:
        given.batch, given.rounds = 2, 1
    if given.device == "cuda" and not torch.cuda.is_available():
        options.error("no GPU is present; --device cpu --quick runs the same code on the CPU")
    torch.set_num_threads(given.threads)
    torch.set_default_device(given.device)  # every tensor and module that is made from here on
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        rows, failed = _rows(given)
    device = torch.cuda.get_device_name() if given.device == "cuda" else machine()["cpu"]
    title = f"{device}, torch {torch.__version__}, batch {given.batch}"
    print(table(title, ("", "figure", "next to", "peak", "next to"), rows))
    for line in failed:
        print(f"failed: {line}")
    results: list[dict[str, Any]] = [{"rows": rows, "failed": failed, "device": device}]
    finish("gpu", results, given.json)
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
