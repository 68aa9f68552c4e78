"""What a model refuses at its borders and between its layers: one message, naming the module."""

from __future__ import annotations

import copy

import pytest
import torch
from plain import X, fused
from stages import prepared
from torch import nn

from horizon_plugin.quantization import convert

NAN = X.clone()
NAN[0, 0, 0, 0] = float("nan")


@pytest.fixture(scope="module")
def models() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    model = prepared(fused(), X)
    return {"prepared": model, "converted": convert(model)}


@pytest.mark.parametrize("stage", ["prepared", "converted"])
@pytest.mark.parametrize(
    ("x", "error", "text"),
    [
        (NAN, ValueError, r"'x' must be free of NaN, got nan(, in the result of quant)?$"),
        (X.to("meta"), ValueError, "quant: 'x' must be on cpu, where the model is, got meta"),
        (X.to(torch.int8), TypeError, "quant: .*'x' must be float32, .* got int8"),
        (X.to_sparse(), TypeError, "quant: 'x' must be a dense .* tensor, got torch.sparse_coo"),
        ([X], TypeError, "quant: 'x' must be a floating-point tensor, got list"),
        (X[:, :2], ValueError, "conv: .*'input' must be of 3 channels"),
    ],
    ids=["nan", "device", "dtype", "layout", "list", "channels"],
)
def test_inputs_that_do_not_fit_are_refused_by_name(models, stage, x, error, text):
    with pytest.raises(error, match=text):
        models[stage](x)


@pytest.mark.parametrize("stage", ["prepared", "converted"])
def test_an_empty_batch_gives_an_empty_result(models, stage):
    assert models[stage](X[:0]).shape == (0, 4)


def test_children_of_another_stage_are_named(models):
    int8 = models["converted"]
    for child, error, text in (
        (nn.Conv2d(3, 8, 3, padding=1), RuntimeError, "'conv2d' ran on the quantized result of 'q"),
        (models["prepared"].conv, TypeError, "conv: 'input' must be float, got codes of quant"),
    ):
        model = copy.deepcopy(int8)
        model.conv = copy.deepcopy(child)
        with pytest.raises(error, match=text):
            model(X)
    model = copy.deepcopy(models["prepared"])
    model.conv = copy.deepcopy(int8.conv)
    with pytest.raises(RuntimeError, match="conv: 'input' must be codes, got floats of quant"):
        model(X)


def test_a_scale_that_is_no_scale_is_named(models):
    model = copy.deepcopy(models["converted"])
    model.conv.scale.fill_(float("nan"))
    with pytest.raises(ValueError, match=r"conv: .*'output_scale' must be finite and positive"):
        model(X)


@pytest.mark.parametrize("x", [X, torch.zeros(1, 3, 6, 6, dtype=torch.uint8)])
def test_a_layer_called_without_a_scale_says_so(models, x):
    with pytest.raises(RuntimeError, match=f"conv: 'input' must be quantized, got {x.dtype} wit"):
        models["converted"].conv(x)
