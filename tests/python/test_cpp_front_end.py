"""The torch::nn front end against the Python one: plans, states and outputs; and its example."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from test_package import run_tool
from torch import Tensor, nn

import horizon_plugin
from horizon_plugin.quantization import (
    DeQuantStub,
    FloatFunctional,
    QuantStub,
    convert,
    fuse_modules,
    get_default_qat_out_qconfig,
    get_default_qat_qconfig,
    prepare_qat,
)

ROOT = Path(__file__).parents[2]
PRESETS = {"horizon": 0, "tensorrt": 1, "x86": 2}


class Block(nn.Module):
    """relu(bn(conv(x)) + x), as in tests/cpp/nn_models.h."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(4)
        self.relu = nn.ReLU()
        self.add = FloatFunctional()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.add.add(self.bn(self.conv(x)), x))


GROUPS = [
    ["conv", "bn", "relu"],
    ["block.conv", "block.bn", "block.add", "block.relu"],
    ["up", "up_bn", "up_relu"],
]


def make_net() -> nn.Sequential:
    """The network of tests/cpp/nn_models.h."""
    net = nn.Sequential()
    layers: dict[str, nn.Module] = {
        "quant": QuantStub(),
        "conv": nn.Conv2d(3, 4, 3, padding=1),
        "bn": nn.BatchNorm2d(4),
        "relu": nn.ReLU6(),
        "block": Block(),
        "pool": nn.MaxPool2d(2),
        "norm": nn.BatchNorm2d(4),
        "up": nn.ConvTranspose2d(4, 6, 2, stride=2),
        "up_bn": nn.BatchNorm2d(6),
        "up_relu": nn.ReLU(),
        "average": nn.AdaptiveAvgPool2d(2),
        "flatten": nn.Flatten(),
        "dropout": nn.Dropout(0.5),
        "head": nn.Linear(24, 5),
        "dequant": DeQuantStub(),
    }
    for name, layer in layers.items():
        net.add_module(name, layer)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -0.5, 0.5)
            module.running_mean.uniform_(-0.5, 0.5)  # type: ignore[union-attr]
            module.running_var.uniform_(0.5, 2.0)  # type: ignore[union-attr]
    return net


def state_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def build(source: Path, directory: Path, target: str) -> Path:
    """Build a program with the installed CMake package."""
    run_tool(
        *("cmake", "-S", str(source), "-B", str(directory), "-G", "Ninja"),
        f"-DHorizonPlugin_DIR={horizon_plugin.cmake_dir}",
        f"-DCMAKE_CXX_COMPILER_LAUNCHER={shutil.which('ccache') or ''}",
    )
    run_tool("cmake", "--build", str(directory), "--target", target)
    return directory / target


@pytest.fixture(scope="module")
def parity(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT / "tests/python/front_end", tmp_path_factory.mktemp("parity"), "parity")


@pytest.mark.parametrize("training", [True, False], ids=["live", "folded"])
@pytest.mark.parametrize("backend", list(PRESETS))
def test_both_front_ends_plan_compute_and_convert_alike(
    parity: Path, tmp_path: Path, backend: str, training: bool
) -> None:
    torch.manual_seed(7)
    net = make_net().train(training)
    x = torch.randn(4, 3, 8, 8)
    given: dict[str, Any] = {
        "float": state_of(net),
        "training": training,
        "preset": PRESETS[backend],
        "input": x,
    }
    fuse_modules(net, GROUPS, inplace=True)
    family = horizon_plugin.nn.intrinsic.FAMILY.values()
    classes = {n: type(m).__name__ for n, m in net.named_modules() if type(m) in family}
    assert classes["block.add"] == ("ConvBNAddReLU2d" if training else "ConvAddReLU2d")
    fused = state_of(net)
    net.eval()
    float_output = net(x)
    net.qconfig = get_default_qat_qconfig(backend=backend)  # type: ignore[assignment]
    net.head.qconfig = get_default_qat_out_qconfig(backend=backend)  # type: ignore[union-attr]
    prepare_qat(net, inplace=True)
    net.train()
    for _ in range(3):
        net(torch.randn(4, 3, 8, 8))
    net.eval()
    given["prepared"] = state_of(net)
    torch.save(given, tmp_path / "in.pt")
    run_tool(str(parity), str(tmp_path / "in.pt"), str(tmp_path / "out.pt"))

    # Dicts of C++ carry their types, which weights_only does not know.
    theirs = torch.load(tmp_path / "out.pt", weights_only=False)
    assert theirs["classes"] == classes
    assert theirs["fused"].keys() == fused.keys()
    for name, tensor in fused.items():
        assert torch.equal(theirs["fused"][name], tensor), name
    output, prepared, integer = theirs["outputs"]
    torch.testing.assert_close(output, float_output, rtol=1e-5, atol=1e-5)
    assert torch.equal(prepared, net(x))
    int8 = convert(net)
    assert torch.equal(integer, int8(x))
    assert torch.equal(integer, prepared)
    state = state_of(int8)
    assert theirs["converted"].keys() == state.keys()
    for name, tensor in state.items():
        assert theirs["converted"][name].dtype == tensor.dtype, name
        assert torch.equal(theirs["converted"][name], tensor), name


def test_the_training_example_reaches_int8_without_python(tmp_path: Path) -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    program = build(ROOT / "examples/cpp", tmp_path / "build", "train_digits")
    digits = datasets.load_digits()
    images = torch.tensor(digits.images).float()[:, None] / 16
    torch.save({"images": images, "labels": torch.tensor(digits.target)}, tmp_path / "digits.pt")
    printed = run_tool(str(program), str(tmp_path / "digits.pt"), "4", str(tmp_path / "int8.pt"))
    accuracy = re.search(r"int8: accuracy ([0-9.]+) %", printed)
    assert accuracy is not None and float(accuracy[1]) >= 95.0
    assert "to the bit: yes" in printed
    assert (tmp_path / "int8.pt").stat().st_size > 0
