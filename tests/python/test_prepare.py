"""prepare_qat, qconfigs, checkpoints and the report: what each does, refuses and says."""

from __future__ import annotations

import io
import warnings

import pytest
import torch
from networks import NETWORKS, randomize
from plain import Plain, X, fused, with_qconfig
from stages import prepared
from torch import Tensor, nn

from horizon_plugin.quantization import (
    DeQuantStub,
    FakeQuantize,
    FakeQuantState,
    QConfig,
    QuantStub,
    WeightFakeQuantize,
    convert,
    disable_fake_quant,
    disable_observer,
    fuse_modules,
    get_default_qat_out_qconfig,
    get_default_qat_qconfig,
    load_float_state_dict,
    prepare_qat,
    report,
    set_fake_quantize,
)


def test_prepare_keeps_parameter_objects_and_the_same_model_object():
    net = fused()
    before = {id(p) for p in net.parameters()}
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    model = prepare_qat(net, inplace=True)
    assert model is net
    assert {id(p) for p in model.parameters()} == before
    weight = model.conv.weight.detach().clone()
    model(X).sum().backward()
    optimizer.step()
    assert not torch.equal(model.conv.weight, weight)


def test_prepare_on_a_copy_leaves_the_float_model_as_it_was():
    net = fused()
    expected = net.eval()(X)
    keys = list(net.state_dict())
    model = prepare_qat(net.train())
    assert model is not net
    assert list(net.state_dict()) == keys
    assert net.training
    assert torch.equal(net.eval()(X), expected)


def test_prepare_runs_no_forward_and_makes_every_buffer():
    net = fused()
    net.register_forward_pre_hook(lambda *_: pytest.fail("a forward ran"))
    model = prepare_qat(net, inplace=True)
    state = model.state_dict()
    for key in ("min_val", "max_val", "scale", "zero_point"):
        value = state[f"quant.activation_post_process.{key}"]
        assert value.shape == ()
    assert state["quant.activation_post_process.scale"] == 1.0


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: 3, TypeError, "prepare_qat: 'model' must be an nn.Module, got int"),
        (lambda: Plain(), ValueError, "must have a qconfig, got none on any module"),
        (
            lambda: nn.DataParallel(fused()),
            ValueError,
            "must be the inner module, got DataParallel",
        ),
        (
            lambda: prepare_qat(fused()),
            ValueError,
            "must be a float model, got one already prepared",
        ),
        (lambda: with_qconfig(nn.Conv2d(1, 1, 1)), ValueError, "got a single Conv2d: wrap it in"),
        (lambda: with_qconfig(fused(), "int8"), TypeError, "'qconfig' must be a QConfig or None"),
        (lambda: weight_normed(), ValueError, "conv: its weight is computed by a parametrization"),
        (lambda: lazy(), ValueError, "1: its weight is not initialized"),
    ],
)
def test_prepare_refuses_by_name(make, error, text):
    with pytest.raises(error) as caught:
        prepare_qat(make(), inplace=True)
    assert text in str(caught.value)


def weight_normed() -> nn.Module:
    net = Plain()
    net.conv = torch.nn.utils.parametrizations.weight_norm(net.conv)
    return with_qconfig(net)


def lazy() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return with_qconfig(nn.Sequential(QuantStub(), nn.LazyConv2d(3, 1)))


def test_a_qconfig_of_none_leaves_a_layer_float_and_the_report_says_so():
    net = fused()
    net.fc.qconfig = None
    linear = net.fc
    model = prepare_qat(net, inplace=True)
    rows = {row.name: row for row in report(model)}
    assert model.fc.module is linear
    assert (rows["fc"].state, rows["fc"].kind) == ("float island", "Linear")
    assert rows["conv"].note == "weight qint8 per channel, output qint8"
    assert (rows["bn"].state, rows["bn"].note) == ("fused", "into conv")
    assert "fake-quantized" in str(report(model))


def test_an_unknown_activation_is_reported_as_float():
    net = nn.Sequential(QuantStub(), nn.Conv2d(3, 4, 1), nn.Softmax(1), DeQuantStub())
    model = prepare_qat(with_qconfig(net), inplace=True)
    assert report(model).float_layers == ["2"]
    model(X)
    with pytest.raises(ValueError, match=r"3: 'input' comes from 'softmax', a float op"):
        convert(model.eval())


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"backend": "arm"}, "'backend' must be one of 'horizon', 'tensorrt', 'x86', got 'arm'"),
        ({"dtype": "quint8"}, "'dtype' must be 'qint8' for backend 'horizon', got 'quint8'"),
        ({"dtype": "int4"}, "'dtype' must be 'qint8' or 'quint8', got 'int4'"),
        ({"weight_dtype": "quint8"}, "'weight_dtype' must be 'qint8', got 'quint8'"),
        ({"activation_fake_quant": "lsq"}, "'activation_fake_quant' must be 'fake_quant' or None"),
        (
            {"activation_qkwargs": {"averaging_constant": 0}},
            "'averaging_constant' must be in (0, 1]",
        ),
        ({"activation_qkwargs": {"observer": "x"}}, "'observer' must be one of"),
        ({"activation_qkwargs": {"scale": -1.0}}, "'scale' must be finite and positive"),
    ],
)
def test_qconfigs_refuse_contradictions(arguments, text):
    with pytest.raises(ValueError) as caught:
        get_default_qat_qconfig(**arguments)
    assert text in str(caught.value)


def test_the_x86_preset_is_unsigned_without_being_told():
    model = with_qconfig(fused(), get_default_qat_qconfig(backend="x86"))
    model = prepare_qat(model, inplace=True)
    quantizer = model.quant.activation_post_process
    assert (quantizer.dtype, quantizer.quant_min, quantizer.quant_max) == ("quint8", 0, 255)
    model(X)
    assert 0 < quantizer.zero_point < 255


def test_a_stub_with_a_fixed_scale_never_moves():
    net = nn.Sequential(QuantStub(scale=1 / 128), nn.Conv2d(3, 4, 1), DeQuantStub()).train()
    model = prepare_qat(with_qconfig(net), inplace=True)
    model(X)
    assert model[0].activation_post_process.scale == 1 / 128
    with pytest.raises(ValueError, match="'scale' must be given with 'zero_point'"):
        QuantStub(zero_point=3)


def test_torch_stubs_and_functionals_are_accepted():
    from torch.ao.nn.quantized import FloatFunctional as TorchFunctional
    from torch.ao.quantization import DeQuantStub as TorchDeQuant
    from torch.ao.quantization import QuantStub as TorchQuant

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.quant, self.dequant = TorchQuant(), TorchDeQuant()
            self.conv = nn.Conv2d(3, 3, 1)
            self.add = TorchFunctional()

        def forward(self, x: Tensor) -> Tensor:
            x = self.quant(x)
            return self.dequant(self.add.add(self.conv(x), x))

    net = Net().train()
    fuse_modules(net, ["conv", "add"], inplace=True)
    model = prepared(net, X)
    assert torch.equal(convert(model)(X), model(X))
    assert report(model).float_layers == []


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_reach_every_parameter(name):
    net = NETWORKS[name]().train()
    fuse_modules(net, net.groups(), inplace=True)
    model = prepare_qat(with_qconfig(net), inplace=True)
    model(torch.randn(2, 3, 32, 32)).square().sum().backward()
    missing = [n for n, p in model.named_parameters() if p.grad is None]
    assert missing == []
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_out_qconfig_has_no_activation_quantizer():
    qconfig = get_default_qat_out_qconfig()
    assert qconfig.activation is None
    assert qconfig.weight is not None


@pytest.mark.parametrize("stage", ["fused", "prepared"])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_float_checkpoint_loads_into_a_fused_or_prepared_model(name, stage):
    source = randomize(NETWORKS[name]())
    net = NETWORKS[name]().train()
    fuse_modules(net, net.groups(), inplace=True)
    if stage == "prepared":
        net = prepare_qat(with_qconfig(net), inplace=True)
        net.apply(disable_fake_quant).apply(disable_observer)
    assert load_float_state_dict(net, source.state_dict()) is net
    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(net.eval()(x), source.eval()(x), rtol=1e-4, atol=1e-5)


def test_a_checkpoint_that_does_not_fit_is_refused_and_nothing_is_loaded():
    net = fused()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    state = Plain().state_dict()
    state["extra"] = torch.zeros(1)
    del state["bn.bias"]
    state["fc.weight"] = torch.zeros(4, 9)
    with pytest.raises(ValueError) as caught:
        load_float_state_dict(net, state)
    text = str(caught.value)
    assert "missing: conv.bn.bias; unexpected: extra; shapes: fc.weight [4, 9] instead of" in text
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    folded = fuse_modules(Plain().eval(), ["conv", "bn", "relu"])
    with pytest.raises(ValueError, match="the batch norm of 'conv' has been folded away"):
        load_float_state_dict(folded, Plain().state_dict())


def test_an_example_that_fails_leaves_the_float_model():
    net = fused()
    classes = [type(m) for m in net.modules()]
    with pytest.raises(ValueError, match="conv: fused"):
        prepare_qat(net, inplace=True, example_inputs=(torch.randn(1, 5, 8, 8),))
    assert [type(m) for m in net.modules()] == classes
    assert net.training
    with pytest.raises(TypeError, match="'example_inputs' must be a tuple of the model's arg"):
        prepare_qat(net, inplace=True, example_inputs=X)
    assert report(prepare_qat(net, example_inputs=(X,))).float_layers == []


@pytest.mark.parametrize(
    "qconfig",
    [
        QConfig(nn.Identity, WeightFakeQuantize),
        QConfig(WeightFakeQuantize, FakeQuantize),
        QConfig(lambda: 0, WeightFakeQuantize),
        QConfig(FakeQuantize(), WeightFakeQuantize),
        QConfig(FakeQuantize, 3),
    ],
)
def test_a_qconfig_of_other_factories_is_refused_at_prepare(qconfig):
    with pytest.raises(TypeError, match=r"quant: 'qconfig.\w+' must be a factory of \w*FakeQuan"):
        prepare_qat(with_qconfig(fused(), qconfig))


@pytest.mark.parametrize("mapping", [3, {nn.Conv2d: nn.Conv2d}, {1: 2}])
def test_a_mapping_that_leads_nowhere_is_refused(mapping):
    with pytest.raises(TypeError, match="prepare_qat: 'mapping' must"):
        prepare_qat(fused(), mapping=mapping)
    model = prepare_qat(fused())
    model(X)
    with pytest.raises(TypeError, match="convert: 'mapping' must"):
        convert(model.eval(), mapping=mapping)


def test_the_state_of_another_preset_is_refused_by_name():
    model = prepare_qat(fused())
    other = prepare_qat(with_qconfig(fused(), get_default_qat_qconfig(backend="x86")))
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    state = torch.load(buffer, weights_only=True)
    model.load_state_dict(state)
    with pytest.raises(ValueError, match="must be saved for backend 'x86', got 'horizon'"):
        other.load_state_dict(state)


def test_calls_on_a_model_of_the_wrong_stage_are_refused():
    with pytest.raises(ValueError, match="'model' must be prepared, got one without quantizers"):
        set_fake_quantize(fused(), FakeQuantState.QAT)
    with pytest.raises(TypeError, match=r"'model' must be an nn.Module, got NoneType"):
        set_fake_quantize(None, FakeQuantState.QAT)
    model = prepare_qat(fused())
    model(X)
    int8 = convert(model.eval())
    with pytest.raises(ValueError, match="'model' must be fused or prepared, got a converted"):
        load_float_state_dict(int8, Plain().state_dict())
    with pytest.raises(TypeError, match="'state_dict' must map names to tensors"):
        load_float_state_dict(model, None)
