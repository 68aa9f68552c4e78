"""The whole path on real data: train, fuse, QAT, int8, TorchScript, and the same file in C++.

One network classifies scikit-learn's handwritten digits and cleans noisy images of them. Every
stage is measured on the test split, and the int8 model, its TorchScript file in a fresh Python
process and the same file in a C++ program must equal the trained model in eval mode to the bit.
The exit status says whether they do.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.nn.functional as F
from digits_net import DigitsNet, fuse
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from tqdm import tqdm

import horizon_plugin
from horizon_plugin.quantization import (
    FakeQuantize,
    FakeQuantState,
    convert,
    get_default_qat_out_qconfig,
    get_default_qat_qconfig,
    prepare_qat,
    report,
    set_fake_quantize,
)

NOISE = 0.15
TEST_DRAWS = 5
BATCH = 64
HERE = Path(__file__).resolve().parent


@dataclass
class Digits:
    """Noisy and clean images, ``[N, 1, 8, 8]``, ink in [0, 1], and labels ``[N]``."""

    noisy: Tensor
    clean: Tensor
    labels: Tensor


@dataclass
class Row:
    """One line of the closing table."""

    stage: str
    accuracy: float
    psnr: float
    size: int
    milliseconds: float


def load_data(seed: int) -> tuple[Digits, Digits]:
    """Train and test split; each test digit comes with several fixed draws of the noise."""
    data = load_digits()
    images = torch.from_numpy(data.images.astype(np.float32) / 16.0)[:, None]
    labels = torch.from_numpy(data.target.astype(np.int64))
    train, test = train_test_split(
        np.arange(len(labels)), test_size=0.2, random_state=seed, stratify=labels
    )
    generator = torch.Generator().manual_seed(seed)

    def split(part: np.ndarray, draws: int) -> Digits:
        clean = images[part].repeat(draws, 1, 1, 1)
        noise = torch.randn(clean.shape, generator=generator) * NOISE
        return Digits(clean + noise, clean, labels[part].repeat(draws))

    return split(train, 1), split(test, TEST_DRAWS)


def train(model: nn.Module, data: Digits, epochs: int, rate: float, label: str) -> None:
    """Adam with a one-cycle rate; fresh noise in every epoch."""
    steps = max(1, epochs * math.ceil(len(data.labels) / BATCH))
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    model.train()
    bar = tqdm(total=steps, desc=label, unit="step", file=sys.stdout, mininterval=0.5, ncols=90)
    for _ in range(epochs):
        order = torch.randperm(len(data.labels))
        for part in order.split(BATCH):
            clean = data.clean[part]
            logits, image = model(clean + torch.randn_like(clean) * NOISE)
            loss = F.cross_entropy(logits, data.labels[part]) + 10 * F.mse_loss(image, clean)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            bar.update()
            bar.set_postfix(loss=f"{loss.item():.3f}", refresh=False)
    bar.close()


@torch.no_grad()
def run(model, data: Digits) -> tuple[Tensor, Tensor]:
    """Logits and images of the whole split, batch by batch."""
    outputs = [model(part) for part in data.noisy.split(BATCH)]
    return torch.cat([o[0] for o in outputs]), torch.cat([o[1] for o in outputs])


def accuracy_of(logits: Tensor, data: Digits) -> float:
    """Percent of digits recognized."""
    return 100.0 * (logits.argmax(1) == data.labels).double().mean().item()


def psnr_of(image: Tensor, data: Digits) -> float:
    """Peak signal-to-noise ratio in dB; the peak is 1."""
    return -10.0 * math.log10(F.mse_loss(image.double(), data.clean.double()).item())


@torch.no_grad()
def milliseconds_of(model, data: Digits) -> float:
    """Time of one batch, the best of several."""
    x = data.noisy[:BATCH]
    best = math.inf
    for _ in range(20):
        start = time.perf_counter()
        model(x)
        best = min(best, time.perf_counter() - start)
    return best * 1e3


def measure(stage: str, model, data: Digits, file: Path) -> tuple[Row, tuple[Tensor, Tensor]]:
    """One row of the table, and the outputs it was computed from."""
    logits, image = run(model, data)
    row = Row(
        stage,
        accuracy_of(logits, data),
        psnr_of(image, data),
        file.stat().st_size,
        milliseconds_of(model, data),
    )
    return row, (logits, image)


def set_qconfigs(model: DigitsNet) -> None:
    """int8 everywhere; the two last layers return fp32."""
    model.qconfig = get_default_qat_qconfig()
    model.classify.qconfig = get_default_qat_out_qconfig()
    model.clean.qconfig = get_default_qat_out_qconfig()


def calibrated(source: DigitsNet, data: Digits, fuse_add: bool) -> nn.Module:
    """`source`'s weights, fused with or without the adds, ranges from the training split."""
    model = DigitsNet()
    model.load_state_dict(source.state_dict())
    fuse(model.train(), fuse_add)
    set_qconfigs(model)
    model = prepare_qat(model, inplace=True).eval()
    set_fake_quantize(model, FakeQuantState.CALIBRATION)
    run(model, data)
    set_fake_quantize(model, FakeQuantState.QAT)
    return model


def noise_db(output: Tensor, reference: Tensor) -> float:
    """Power of the difference relative to the reference, in dB."""
    error = (output.double() - reference.double()).square().sum()
    return 10.0 * math.log10((error / reference.double().square().sum()).item())


def gain_of_fusing_the_add(source: DigitsNet, train_data: Digits, test: Digits) -> float:
    """How much less activation-quantization noise the second block's output has, in dB.

    Both variants have the same weights, quantized alike; the reference quantizes weights only.
    """
    noise = {}
    for fuse_add in (True, False):
        model = calibrated(source, train_data, fuse_add)
        kept: list[Tensor] = []
        hook = model.pool.register_forward_pre_hook(lambda _, args, kept=kept: kept.append(args[0]))
        run(model, test)
        quantized = torch.cat(kept)
        kept.clear()
        for module in model.modules():
            if isinstance(module, FakeQuantize):
                module.fake_quant_enabled = False
        run(model, test)
        reference = torch.cat(kept)
        hook.remove()
        noise[fuse_add] = noise_db(quantized, reference)
    return noise[False] - noise[True]


def run_in_fresh_python(script: Path, data_file: Path, out: Path) -> tuple[Tensor, ...]:
    """Load the TorchScript file in a new process, which knows nothing but the library."""
    code = (
        "import sys, time, torch, horizon_plugin\n"
        "model = torch.jit.load(sys.argv[1])\n"
        "data = torch.load(sys.argv[2], weights_only=True)\n"
        "parts = data['noisy'].split(int(sys.argv[4]))\n"
        "outs = [model(p) for p in parts]\n"
        "best = 1e9\n"
        "for _ in range(20):\n"
        "    start = time.perf_counter(); model(parts[0])\n"
        "    best = min(best, time.perf_counter() - start)\n"
        "torch.save((torch.cat([o[0] for o in outs]), torch.cat([o[1] for o in outs]),\n"
        "            torch.tensor(best * 1e3)), sys.argv[3])\n"
    )
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, script, data_file, out, str(BATCH)], check=True
    )
    return torch.load(out, weights_only=True)


def run_in_cpp(script: Path, data_file: Path, out: Path, build: Path) -> tuple[Tensor, ...]:
    """Build examples/cpp and run the same file without Python."""
    source = HERE.parent / "cpp"
    cmake = Path(sys.executable).parent / "cmake"
    command = str(cmake) if cmake.exists() else "cmake"
    environment = {**os.environ, "PATH": f"{cmake.parent}{os.pathsep}{os.environ['PATH']}"}
    print("== building the C++ program", flush=True)
    for step in (
        [
            command,
            "-S",
            source,
            "-B",
            build,
            "-DCMAKE_BUILD_TYPE=Release",
            f"-DHorizonPlugin_DIR={horizon_plugin.cmake_dir}",
            f"-DPython3_EXECUTABLE={sys.executable}",
        ],
        [command, "--build", build, "--target", "run_digits"],
    ):
        result = subprocess.run(step, env=environment, capture_output=True, text=True)
        if result.returncode != 0:
            raise RuntimeError(f"the C++ example did not build:\n{result.stdout}{result.stderr}")
    print("== running it", flush=True)
    subprocess.run([build / "run_digits", script, data_file, out, str(BATCH)], check=True)
    return torch.load(out, weights_only=True)


def draw(path: Path, data: Digits, float_image: Tensor, int8_image: Tensor, model) -> None:
    """Noisy digits, both reconstructions, the clean ones, and the range of every quantizer."""
    figure = plt.figure(figsize=(11, 8.5), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=[1.3, 1])
    rows = (
        ("noisy", data.noisy),
        ("float", float_image),
        ("int8", int8_image),
        ("clean", data.clean),
    )
    axes = top.subplots(len(rows), 10)
    for line, (name, images) in zip(axes, rows, strict=True):
        for axis, image in zip(line, images, strict=False):
            axis.imshow(image[0], cmap="gray_r", vmin=0, vmax=1)
            axis.set_xticks([])
            axis.set_yticks([])
        line[0].set_ylabel(name)
    quantizers = [
        (name.removesuffix(".activation_post_process"), m)
        for name, m in model.named_modules()
        if isinstance(m, FakeQuantize)
    ]
    axis = bottom.subplots()
    low = [m.min_val.item() for _, m in quantizers]
    high = [m.max_val.item() for _, m in quantizers]
    y = np.arange(len(quantizers))
    axis.barh(y, np.subtract(high, low), left=low, height=0.5)
    grid = [127.5 * m.scale.item() for _, m in quantizers]
    axis.scatter(grid, y, marker="|", s=150, color="black", label="end of the int8 grid")
    axis.set_yticks(y, [name for name, _ in quantizers])
    axis.invert_yaxis()
    axis.use_sticky_edges = False
    axis.set_xlabel("range of the activation")
    axis.legend()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def table(rows: list[Row]) -> str:
    """The closing table."""
    head = f"{'stage':<26}{'accuracy %':>11}{'PSNR dB':>10}{'file KiB':>10}{'ms/batch':>10}"
    lines = [head, "-" * len(head)]
    for r in rows:
        lines.append(
            f"{r.stage:<26}{r.accuracy:>11.2f}{r.psnr:>10.2f}{r.size / 1024:>10.1f}"
            f"{r.milliseconds:>10.2f}"
        )
    return "\n".join(lines)


def verdicts(rows: list[Row], equal: dict[str, bool]) -> dict[str, bool]:
    """What must hold for the demo to have succeeded."""
    accuracy = {r.stage: r.accuracy for r in rows}
    return {
        "int8 accuracy is at least 97 %": accuracy["int8"] >= 97.0,
        "int8 is within 0.5 points of float": abs(accuracy["int8"] - accuracy["float"]) <= 0.5,
        **{f"{name} equals QAT in eval mode to the bit": same for name, same in equal.items()},
    }


def main() -> int:
    """Run the demo; 0 if everything holds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=40, help="float epochs; QAT takes a fifth")
    parser.add_argument("--out", type=Path, default=Path("out/digits"), help="folder for results")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-cpp", action="store_true", help="leave the C++ program out")
    arguments = parser.parse_args()
    if arguments.epochs < 1:
        parser.error("argument --epochs: must be at least 1")
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(arguments.seed)
    # Images of 8 x 8 give a second thread little to do, and waiting for it costs more.
    torch.set_num_threads(1)
    start = time.perf_counter()

    train_data, test = load_data(arguments.seed)
    torch.save({"noisy": test.noisy, "clean": test.clean, "labels": test.labels}, out / "test.pt")

    float_model = DigitsNet()
    train(float_model, train_data, arguments.epochs, 3e-3, "float")
    float_model.eval()
    torch.save(float_model.state_dict(), out / "float.pt")
    rows, outputs = [], {}
    row, outputs["float"] = measure("float", float_model, test, out / "float.pt")
    rows.append(row)

    model = DigitsNet()
    model.load_state_dict(float_model.state_dict())
    fuse(model.train())
    set_qconfigs(model)
    model = prepare_qat(model, inplace=True)
    train(model, train_data, max(1, arguments.epochs // 5), 3e-4, "QAT  ")
    model.eval()
    torch.save(model.state_dict(), out / "qat.pt")
    row, outputs["qat"] = measure("QAT, eval mode", model, test, out / "qat.pt")
    rows.append(row)

    int8 = convert(model)
    torch.save(int8.state_dict(), out / "int8.pt")
    row, outputs["int8"] = measure("int8", int8, test, out / "int8.pt")
    rows.append(row)
    print(report(int8))

    script_file = out / "digits_int8.torchscript.pt"
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        torch.jit.save(torch.jit.trace(int8, test.noisy[:BATCH]), script_file)
    results = {
        "TorchScript in Python": run_in_fresh_python(
            script_file, out / "test.pt", out / "from_python.pt"
        )
    }
    if not arguments.no_cpp:
        results["TorchScript in C++"] = run_in_cpp(
            script_file, out / "test.pt", out / "from_cpp.pt", out / "cpp-build"
        )
    for stage, (logits, image, milliseconds) in results.items():
        rows.append(
            Row(
                stage,
                accuracy_of(logits, test),
                psnr_of(image, test),
                script_file.stat().st_size,
                milliseconds.item(),
            )
        )
        outputs[stage] = (logits, image)

    gain = gain_of_fusing_the_add(float_model, train_data, test)
    draw(out / "digits.png", test, outputs["float"][1], outputs["int8"][1], model)
    equal = {
        stage: all(torch.equal(a, b) for a, b in zip(outputs[stage], outputs["qat"], strict=True))
        for stage in outputs
        if stage not in ("float", "qat")
    }
    checks = verdicts(rows, equal)
    print()
    print(table(rows))
    print(f"\nfusing the add: {gain:.1f} dB less quantization noise after the second block")
    for text, holds in checks.items():
        print(f"{'ok  ' if holds else 'FAIL'} {text}")
    print(f"{time.perf_counter() - start:.0f} s in all; files and digits.png in {out}")
    (out / "results.json").write_text(
        json.dumps({"rows": [vars(r) for r in rows], "gain_db": gain, "checks": checks}, indent=1)
    )
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
