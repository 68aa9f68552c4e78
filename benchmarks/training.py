"""A QAT training step against the float step: time, bytes saved for backward, peak memory."""

from __future__ import annotations

import argparse
import copy
import gc
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from common import Call, describe, finish, interleave, machine, parser, table
from layers import training_layer_table
from models import TRAINING
from stages import prepared
from torch import Tensor, nn

Build = Callable[[nn.Module, Tensor], nn.Module]
CLASSES = 10


def _float(model: nn.Module, _: Tensor) -> nn.Module:
    return copy.deepcopy(model)


def _torch_ao(model: nn.Module, x: Tensor) -> nn.Module:
    """torch.ao's FX quantization-aware training with its x86 defaults."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.ao.quantization import get_default_qat_qconfig_mapping
        from torch.ao.quantization.quantize_fx import prepare_qat_fx

        return prepare_qat_fx(
            copy.deepcopy(model).train(), get_default_qat_qconfig_mapping("x86"), (x,)
        )


def _compiled(model: nn.Module, x: Tensor) -> nn.Module:
    return torch.compile(prepared(model, x), fullgraph=True)


#: name -> how a float model becomes it, and the layout of its images.
FORMS: dict[str, tuple[Build, torch.memory_format]] = {
    "float channels_last": (_float, torch.channels_last),
    "float contiguous": (_float, torch.contiguous_format),
    "QAT": (prepared, torch.channels_last),
    "QAT contiguous": (prepared, torch.contiguous_format),
    "torch.ao QAT": (_torch_ao, torch.channels_last),
    "QAT compiled": (_compiled, torch.channels_last),
}
#: Compilation takes minutes: only when asked for.
DEFAULT_FORMS = [name for name in FORMS if name != "QAT compiled"]
FLOAT = "float channels_last"


def build(form: str, name: str, batch: int) -> tuple[nn.Module, Tensor, Tensor]:
    """A model in training mode, images and labels."""
    factory, side = TRAINING[name]
    make, layout = FORMS[form]
    torch.manual_seed(0)
    x = torch.randn(batch, 3, side, side).contiguous(memory_format=layout)
    dense = name == "unet"
    labels = torch.randint(0, CLASSES, (batch, side, side) if dense else (batch,))
    model = factory(classes=CLASSES).to(memory_format=layout)
    return make(model, x).train(), x, labels


def step_of(form: str, name: str, batch: int) -> Call:
    """One training step: forward, loss, backward, SGD with momentum."""
    model, x, labels = build(form, name, batch)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), labels).backward()
        optimizer.step()

    return step


@contextmanager
def _counting(model: nn.Module) -> Iterator[dict[int, int]]:
    """Storages, other than parameters, that autograd saves meanwhile: address -> bytes."""
    kept = {p.untyped_storage().data_ptr() for p in model.parameters()}
    found: dict[int, int] = {}
    alive = []

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in kept:
            found[storage.data_ptr()] = storage.nbytes()
            alive.append(storage)  # or its address could be given out again
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield found


def saved_bytes(form: str, name: str, batch: int) -> int:
    """Bytes that a forward pass saves for backward, shared storages once."""
    model, x, labels = build(form, name, batch)
    with _counting(model) as found:
        F.cross_entropy(model(x), labels)
    return sum(found.values())


def _memory_line(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {key}")


def _peak(form: str, name: str, batch: int) -> int:
    """Most memory that three steps hold beyond what a small float step left behind."""
    step_of(FLOAT, name, 2)()
    gc.collect()
    before = _memory_line("VmRSS")
    step = step_of(form, name, batch)
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of setting up
    for _ in range(3):
        step()
    return _memory_line("VmHWM") - before


def peak_bytes(form: str, name: str, batch: int, threads: int) -> int:
    """`_peak` in a fresh process."""
    command = [sys.executable, __file__, "--peak", form, "--models", name]
    command += ["--batch", str(batch), "--threads", str(threads)]
    # Freed blocks go back at once, so that the process holds what is alive.
    limits = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, **limits}
    )
    return int(done.stdout)


def _measure(name: str, batch: int, given: argparse.Namespace) -> dict[str, Any]:
    forms = given.forms
    times = interleave(
        {form: step_of(form, name, batch) for form in forms}, given.rounds, seconds=0.0
    )
    saved = {form: saved_bytes(form, name, batch) for form in forms}
    peaks = {form: peak_bytes(form, name, batch, given.threads) for form in forms}
    rows = (
        (
            form,
            f"{times[form] * 1e3:.1f}",
            f"{times[form] / times[FLOAT]:.3f}",
            f"{saved[form] / 2**20:.1f}",
            f"{saved[form] / saved[FLOAT]:.3f}",
            f"{peaks[form] / 2**20:.1f}",
            f"{peaks[form] / peaks[FLOAT]:.3f}",
        )
        for form in forms
    )
    side = TRAINING[name][1]
    header = ("", "ms", "/ float", "saved MiB", "/ float", "peak MiB", "/ float")
    print(table(f"{name}, a step of batch {batch}, 3x{side}x{side}", header, rows))
    return {"model": name, "batch": batch, "seconds": times, "saved": saved, "peak": peaks}


def _scaling(name: str, batch: int, given: argparse.Namespace) -> dict[str, Any]:
    """One thread and all of them, in turns."""
    steps = {form: step_of(form, name, batch) for form in given.forms}

    def with_threads(step: Call, threads: int) -> Call:
        def run() -> None:
            torch.set_num_threads(threads)
            step()

        return run

    calls = {
        f"{form}, {threads}": with_threads(step, threads)
        for form, step in steps.items()
        for threads in (1, given.threads)
    }
    times = interleave(calls, given.rounds, seconds=0.0)
    torch.set_num_threads(given.threads)
    rows = (
        (
            form,
            *(f"{times[f'{form}, {threads}'] * 1e3:.1f}" for threads in (1, given.threads)),
            f"{times[f'{form}, 1'] / times[f'{form}, {given.threads}']:.2f}",
        )
        for form in given.forms
    )
    header = ("", "ms, 1 thread", f"ms, {given.threads}", "speedup")
    print(table(f"{name}, scaling", header, rows))
    return {"model": name, "batch": batch, "scaling": times}


def _layers(name: str, batch: int, rounds: int) -> None:
    """Where the time goes."""
    model, x, _ = build("QAT", name, batch)
    reference, _, _ = build(FLOAT, name, batch)
    print(training_layer_table(model, reference, x, rounds))


def main() -> None:
    """Run the benchmark."""
    options = parser(__doc__ or "", rounds=8)
    options.add_argument("--models", nargs="+", default=list(TRAINING), choices=TRAINING)
    options.add_argument("--batch", type=int, default=16)
    options.add_argument("--forms", nargs="+", default=DEFAULT_FORMS, choices=FORMS)
    options.add_argument("--scaling", action="store_true", help="also with one thread")
    options.add_argument("--layers", action="store_true", help="also each layer by itself")
    options.add_argument("--peak", choices=FORMS, help=argparse.SUPPRESS)
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    if given.peak is not None:
        print(_peak(given.peak, given.models[0], given.batch))
        return
    if FLOAT not in given.forms:
        given.forms.insert(0, FLOAT)
    print(describe(machine()) + "\n")
    results = []
    for name in given.models:
        results.append(_measure(name, given.batch, given))
        if given.scaling:
            results.append(_scaling(name, given.batch, given))
        if given.layers:
            _layers(name, given.batch, given.rounds)
    finish("training", results, given.json)


if __name__ == "__main__":
    main()
