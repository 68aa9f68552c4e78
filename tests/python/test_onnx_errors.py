"""What `to_onnx` refuses, by name and with a remedy, without touching the file."""

from __future__ import annotations

import builtins

import pytest
import torch
from stages import prepared
from test_onnx_layers import Function, around
from torch import nn

from horizon_plugin.export import to_onnx
from horizon_plugin.quantization import get_default_qat_qconfig, prepare_qat

X = torch.randn(2, 3, 6, 5)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return prepared(around(nn.ReLU()), X, steps=1)


BAD = {
    "float model": (
        lambda m: (around(nn.ReLU()), X),
        ValueError,
        "'model' must be prepared or converted, got a float model: call prepare_qat",
    ),
    "no module": (lambda m: (len, X), TypeError, "'model' must be a Module, got builtin_function"),
    "no tensor": (lambda m: (m, 3), TypeError, "'x' must be a tensor or a tuple of them, got int"),
    "none in a tuple": (lambda m: (m, (X, None)), TypeError, "got NoneType in it"),
    "empty tuple": (lambda m: (m, ()), TypeError, "'x' must be a tensor or a tuple of them"),
    "two arguments": (lambda m: (m, (X, X)), (TypeError, ValueError), "argument"),
    "channels": (lambda m: (m, X[:, :2]), ValueError, "1: .*'input' must be of 3 channels"),
    "integers": (lambda m: (m, X.int()), (TypeError, ValueError), "'x' must be float"),
}


@pytest.mark.parametrize("name", BAD)
def test_wrong_arguments_are_named(name, model, tmp_path):
    make, error, text = BAD[name]
    path = tmp_path / "net.onnx"
    with pytest.raises(error, match=text):
        to_onnx(*make(model), path)
    assert list(tmp_path.iterdir()) == []


def test_paths_that_cannot_be_written_are_named(model, tmp_path):
    with pytest.raises(FileNotFoundError, match="'path' must be in a folder that exists"):
        to_onnx(model, X, tmp_path / "no" / "net.onnx")
    with pytest.raises(IsADirectoryError, match="'path' must be a file to write, got the folder"):
        to_onnx(model, X, tmp_path)
    with pytest.raises(TypeError, match="'path' must be a path, got int"):
        to_onnx(model, X, 3)
    assert list(tmp_path.iterdir()) == []


def test_an_operator_without_a_form_is_named_with_its_layer_and_keeps_the_old_file(tmp_path):
    net = around(nn.Identity())
    net[2] = Function(lambda x: torch.cumsum(x, 1))
    net.qconfig = get_default_qat_qconfig()
    net[2].qconfig = None
    model = prepare_qat(net, inplace=True)
    model(X)
    path = tmp_path / "net.onnx"
    path.write_text("old")
    text = r"to_onnx: 2(\.module)?: aten.cumsum.default has no form in ONNX here; those that have"
    with pytest.raises(NotImplementedError, match=text):
        to_onnx(model.eval(), X, path)
    assert path.read_text() == "old"


def test_without_onnx_the_remedy_is_named_before_any_work(model, tmp_path, monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "onnx":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"pip install horizon-plugin\[onnx\]"):
        to_onnx(model, X, tmp_path / "net.onnx")
