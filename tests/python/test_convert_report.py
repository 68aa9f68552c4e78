"""convert(…, example_inputs=, report=True): what quantized arithmetic changes, layer by layer."""

from __future__ import annotations

import math

import pytest
import torch
from plain import Plain, X, fused, with_qconfig
from stages import prepared
from torch import nn

from horizon_plugin.quantization import (
    DeQuantStub,
    QuantStub,
    convert,
    get_default_qat_out_qconfig,
    prepare_qat,
)


def test_the_report_has_a_row_for_each_quantizer_and_says_that_the_result_is_exact(capsys):
    model = prepared(fused(), X)
    int8, report = convert(model, example_inputs=X, report=True)
    assert torch.equal(int8(X), model(X))
    assert report.exact
    assert [row.name for row in report] == ["quant", "conv", "pool", "fc"]
    # 4 images of 3x6x6, 8x6x6, 8x1x1, and 4 logits each
    assert [row.codes for row in report] == [432, 1152, 32, 16]
    for row in report:
        assert row.differing / row.codes == row.share < 0.01
        assert row.max_difference <= 1
        assert 5 < row.sqnr < 60
    assert "converted equal prepared in eval mode, to the bit" in str(report)
    assert capsys.readouterr() == ("", "")


def test_differing_codes_are_counted_against_the_float_simulation():
    # The simulation is made to be two codes off, which shows except where it saturates.
    model = prepared(fused(), X)
    layer = model.pool
    layer._float = lambda x: nn.functional.adaptive_avg_pool2d(x, 1) + 2 * step
    step = layer.activation_post_process.scale.item()
    _, report = convert(model, example_inputs=X, report=True)
    row = report[2]
    assert row.name == "pool"
    saturated = row.codes - row.differing
    assert saturated < 5
    assert row.max_difference == 2
    assert row.share == row.differing / row.codes


def test_a_report_moves_nothing_and_works_in_place():
    model = prepared(fused(), X)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    convert(model, example_inputs=(100 * X,), report=True)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    expected = model(X)
    int8, report = convert(model, inplace=True, example_inputs=[X], report=True)
    assert int8 is model
    assert report.exact
    assert torch.equal(int8(X), expected)


def test_a_high_precision_output_has_a_ratio_and_no_codes():
    net = fused()
    net.fc.qconfig = get_default_qat_out_qconfig()
    model = prepare_qat(net, inplace=True)
    model(X)
    _, report = convert(model.eval(), example_inputs=X, report=True)
    row = report[-1]
    assert (row.differing, row.share, row.max_difference) == (None, None, None)
    assert 20 < row.sqnr < 60
    assert report.exact


def test_ratios_are_those_of_the_definition():
    # x = 0.3 on the grid 1: the code 0, signal 0.3^2 and noise 0.3^2, 0 dB; x = 3 is exact.
    stub = QuantStub(scale=1.0, zero_point=0)
    model = prepare_qat(with_qconfig(nn.Sequential(stub, DeQuantStub()))).eval()
    for value, expected in ((0.3, 0.0), (3.0, math.inf), (1.5, 20 * math.log10(3.0))):
        _, report = convert(model, example_inputs=torch.full((2, 2), value), report=True)
        assert report[0].sqnr == pytest.approx(expected, abs=1e-6)


def test_a_report_of_a_model_that_differs_says_so():
    model = prepared(fused(), X)
    calls = []
    model.register_forward_hook(lambda module, args, y: calls.append(1) or y + len(calls))
    _, report = convert(model, example_inputs=X, report=True)
    assert not report.exact
    assert "DIFFERS" in str(report)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"report": True}, ValueError, "'example_inputs' must be given with report=True, got None"),
        ({"example_inputs": X}, ValueError, "'report' must be True with example_inputs, got False"),
        (
            {"example_inputs": 3, "report": True},
            TypeError,
            "'example_inputs' must be a tuple of the model's arguments, got int",
        ),
    ],
)
def test_options_that_do_not_go_together_are_refused(options, error, text):
    model = prepared(Plain().train(), X)
    with pytest.raises(error, match=f"convert: {text}"):
        convert(model, **options)
