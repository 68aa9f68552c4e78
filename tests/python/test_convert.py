"""convert: what it refuses, warns of, and leaves behind."""

from __future__ import annotations

import pytest
import torch
from plain import Plain, X, fused, with_qconfig
from stages import prepared
from torch import Tensor, nn

from horizon_plugin.quantization import (
    DeQuantStub,
    QuantStub,
    convert,
    disable_fake_quant,
    fuse_modules,
    get_default_qat_out_qconfig,
    prepare_qat,
    report,
)


class RawAdd(Plain):
    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn(self.conv(self.quant(x))))
        x = x + x
        return self.dequant(self.fc(self.pool(x).flatten(1)))


def test_a_raw_add_on_quantized_data_trains_and_is_refused_by_convert_in_one_line():
    net = RawAdd().train()
    fuse_modules(net, ["conv", "bn", "relu"], inplace=True)
    model = prepare_qat(with_qconfig(net), inplace=True)
    model(X).sum().backward()
    text = "pool: 'input' comes from 'add', a float op on the result of conv: wrap the + in a Float"
    assert any(row.name == "pool" and row.state == "float" for row in report(model))
    before = type(model.conv)
    with pytest.raises(ValueError) as caught:
        convert(model.eval(), inplace=True)
    assert text in str(caught.value)
    assert type(model.conv) is before


def test_a_converted_model_that_meets_a_raw_add_says_layer_op_and_remedy():
    net = RawAdd().train()
    fuse_modules(net, ["conv", "bn", "relu"], inplace=True)
    model = prepare_qat(with_qconfig(net), inplace=True)
    with pytest.warns(UserWarning, match="no range was ever observed in quant, conv, pool, fc"):
        int8 = convert(model.eval())
    with pytest.raises(RuntimeError) as caught:
        int8(X)
    assert str(caught.value) == (
        "'add' ran on the quantized result of 'conv' (uint8 codes): "
        "wrap the + in a FloatFunctional that is an attribute of the model"
    )


def test_a_missing_quant_stub_is_reported_and_refused():
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), DeQuantStub()).train()
    fuse_modules(net, ["0", "1"], inplace=True)
    model = prepare_qat(with_qconfig(net), inplace=True)
    model(X)
    with pytest.raises(ValueError, match=r"0: 'input' is not quantized: put a QuantStub before 0"):
        convert(model.eval())


def test_float_input_of_a_converted_layer_names_layer_and_remedy():
    model = prepared(fused(), X)
    int8 = convert(model)
    with pytest.raises(RuntimeError, match=r"conv: 'input' must be quantized, got torch.float32"):
        int8.conv(X)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Plain(), "must be prepared, got a float model: call prepare_qat first"),
        (lambda: convert(prepared(fused(), X)), "must be prepared, got one already converted"),
    ],
)
def test_convert_refuses_other_stages(make, text):
    with pytest.raises(ValueError, match=text):
        convert(make())


def test_convert_warns_where_fake_quant_is_off():
    model = prepared(fused(), X)
    model.conv.apply(disable_fake_quant)
    with pytest.warns(UserWarning, match="fake-quant is off in conv: the converted model"):
        convert(model)


def test_convert_leaves_the_prepared_model_unchanged_and_inplace_returns_the_same_object():
    model = prepared(fused(), X)
    expected = model(X)
    convert(model)
    assert torch.equal(model(X), expected)
    assert convert(model, inplace=True) is model
    assert torch.equal(model(X), expected)


def test_the_converted_model_holds_int8_weights_and_no_batch_norm():
    int8 = convert(prepared(fused(), X))
    assert int8.conv.weight.dtype == torch.int8
    assert int8.conv.weight.abs().max() == 127
    assert not any(isinstance(m, nn.BatchNorm2d) for m in int8.modules())
    assert not list(int8.parameters())
    kept = []
    int8.pool.register_forward_pre_hook(lambda _, args: kept.append(args[0].dtype))
    int8(X)
    assert kept == [torch.uint8]


class Branch(Plain):
    """A float op whose result no quantized layer consumes."""

    def __init__(self, use) -> None:
        super().__init__()
        self.use = use

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn(self.conv(self.quant(x))))
        side = self.use(x)
        return self.dequant(self.fc(self.pool(x).flatten(1))), side


@pytest.mark.parametrize(
    ("use", "op"),
    [
        (lambda x: x + 1, "add"),
        (lambda x: bool(x.max() > 0), "max"),
        (lambda x: x.argmax(1), "argmax"),
        (lambda x: x.to(torch.float64), "to"),
    ],
)
def test_float_ops_beside_the_quantized_path_are_refused_too(use, op):
    net = Branch(use).train()
    fuse_modules(net, ["conv", "bn", "relu"], inplace=True)
    model = prepare_qat(with_qconfig(net), inplace=True)
    model(X)
    with pytest.raises(ValueError, match=rf"'{op}' runs on the quantized result of conv: "):
        convert(model.eval(), inplace=True)
    assert type(model.conv).__module__ == "horizon_plugin.nn.qat"


def test_a_high_precision_output_inside_a_model_names_both_layers():
    net = nn.Sequential(QuantStub(), nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1), DeQuantStub())
    net[1].qconfig = get_default_qat_out_qconfig()
    model = prepare_qat(with_qconfig(net.train()), inplace=True)
    model(X)
    with pytest.raises(ValueError, match=r"2: 'input' is the high-precision .fp32. output of 1: g"):
        convert(model.eval())
