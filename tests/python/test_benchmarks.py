"""The benchmarks run and write what they print; their figures are not tested."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def run(script: str, folder: Path, *options: str) -> dict:
    path = folder / "out.json"
    command = [sys.executable, str(BENCHMARKS / script), "--rounds", "1", "--json", str(path)]
    # The scripts import their neighbours, from their own folder.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    done = subprocess.run(
        [*command, *options], capture_output=True, text=True, timeout=300, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert "torch" in done.stdout
    return json.loads(path.read_text())


def test_inference_is_measured_in_all_forms_next_to_float(tmp_path: Path) -> None:
    others = ("torch.ao traced", "onnxruntime u8s8", "PT2E + inductor")
    options = ("--models", "unet", "resnet18", "--batch", "1", "--size", "64", "--layers")
    content = run("inference.py", tmp_path, *options, "--skip", *others)
    assert len(content["results"]) == 2
    for result in content["results"]:
        assert {"float channels_last", "int8 eager", "int8 traced"} <= set(result["seconds"])
        assert all(seconds > 0 for seconds in result["seconds"].values())
        # Weights of one byte instead of four, and a little for each channel.
        assert 0.25 < result["memory_bytes"] / result["float_memory_bytes"] < 0.3
    assert content["machine"]["threads"] == 2


def test_a_trace_holds_one_operator_for_each_layer(tmp_path: Path) -> None:
    for result in run("overhead.py", tmp_path, "--models", "resnet18")["results"]:
        operators = dict(result["operators"])
        operators.pop("aten::dropout", None)  # the float model's own
        assert set(operators) <= {
            "horizon::quantize",
            "horizon::quantized_conv_packed",
            "horizon::quantized_max_pool2d",
            "horizon::quantized_adaptive_avg_pool2d",
            "aten::flatten",
        }


def test_every_operator_has_a_rate(tmp_path: Path) -> None:
    results = run("kernels.py", tmp_path, "--batch", "1")["results"]
    results += run("training_kernels.py", tmp_path, "--mebibytes", "1")["results"]
    for result in results:
        assert "clone" in result["seconds"]
        assert set(result["seconds"]) == set(result["gigabytes_per_second"])


def test_a_training_step_is_measured_in_time_and_memory_and_layer_by_layer(tmp_path: Path) -> None:
    options = ("--models", "unet", "--batch", "2", "--scaling", "--layers")
    results = run("training.py", tmp_path, *options, "--forms", "QAT")["results"]
    steps = [result for result in results if "saved" in result]
    assert [result["model"] for result in steps] == ["unet"]
    for result in steps:
        for kind in ("seconds", "saved", "peak"):
            assert set(result[kind]) == {"float channels_last", "QAT"}
        # Codes and masks of a bit instead of floats.
        assert result["saved"]["QAT"] < 0.75 * result["saved"]["float channels_last"]
    scaling = [result["scaling"] for result in results if "scaling" in result]
    assert set(scaling[0]) == {f"{form}, {n}" for form in steps[0]["seconds"] for n in (1, 2)}
