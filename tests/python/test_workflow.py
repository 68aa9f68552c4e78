"""prepare, states, convert, report: what each does, refuses and says."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from networks import NETWORKS, randomize
from stages import prepared, script, trace
from torch import Tensor, nn

import horizon_plugin as horizon
from horizon_plugin.quantization import (
    DeQuantStub,
    FakeQuantize,
    FakeQuantState,
    FloatFunctional,
    QuantStub,
    convert,
    disable_fake_quant,
    disable_observer,
    enable_fake_quant,
    enable_observer,
    freeze_bn_stats,
    fuse_modules,
    get_default_qat_out_qconfig,
    get_default_qat_qconfig,
    load_float_state_dict,
    prepare_qat,
    report,
    set_fake_quantize,
    unfreeze_bn_stats,
)


class Plain(nn.Module):
    """quant, conv-bn-relu, pool, linear, dequant."""

    def __init__(self) -> None:
        super().__init__()
        self.quant = QuantStub()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.bn = nn.BatchNorm2d(8)
        self.relu = nn.ReLU()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(8, 4)
        self.dequant = DeQuantStub()

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn(self.conv(self.quant(x))))
        return self.dequant(self.fc(self.pool(x).flatten(1)))


def fused() -> Plain:
    net = Plain().train()
    fuse_modules(net, ["conv", "bn", "relu"], inplace=True)
    net.qconfig = get_default_qat_qconfig()
    return net


def ranges(model: nn.Module) -> dict[str, float]:
    return {
        f"{name}.{key}": getattr(m, key).item()
        for name, m in model.named_modules()
        if isinstance(m, FakeQuantize)
        for key in ("min_val", "max_val", "scale", "observed")
    }


X = torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(1))


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


def with_qconfig(model: nn.Module, qconfig: object = None) -> nn.Module:
    model.qconfig = qconfig or get_default_qat_qconfig()
    return model


def weight_normed() -> nn.Module:
    net = Plain()
    net.conv = torch.nn.utils.parametrizations.weight_norm(net.conv)
    return with_qconfig(net)


def lazy() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return with_qconfig(nn.Sequential(QuantStub(), nn.LazyConv2d(3, 1)))


def test_ranges_move_in_training_only():
    model = prepare_qat(fused(), inplace=True)
    model(X)
    after_one = ranges(model)
    model(3 * X)
    assert ranges(model) != after_one
    after_two = ranges(model)
    model.eval()(10 * X)
    assert ranges(model) == after_two


def test_the_first_batch_sets_the_range_and_later_ones_move_it_by_one_hundredth():
    model = prepare_qat(fused(), inplace=True)
    quantizer = model.quant.activation_post_process
    model(X)
    first = quantizer.max_val.item()
    assert first == X.max().item()
    model(3 * X)
    expected = first + 0.01 * (3 * X.max().item() - first)  # r + c (x - r)
    assert quantizer.max_val.item() == pytest.approx(expected, rel=1e-6)
    peak = max(-quantizer.min_val.item(), quantizer.max_val.item())
    assert quantizer.scale.item() == pytest.approx(peak / 127.5, rel=1e-6)


def test_states_switch_observers_and_fake_quant():
    model = prepare_qat(fused(), inplace=True)
    float_output = model.apply(disable_fake_quant).apply(disable_observer).eval()(X)
    assert ranges(model)["quant.activation_post_process.observed"] == 0
    reference = fused()
    reference.load_state_dict(
        {k: v for k, v in model.state_dict().items() if "post_process" not in k}
    )
    torch.testing.assert_close(float_output, reference.eval()(X), rtol=1e-5, atol=1e-6)

    set_fake_quantize(model, FakeQuantState.CALIBRATION)
    output = model(X)
    assert ranges(model)["quant.activation_post_process.observed"] == 1
    assert torch.equal(output, float_output)

    set_fake_quantize(model, FakeQuantState.VALIDATION)
    frozen = ranges(model)
    model.train()(X)
    assert ranges(model) == frozen
    assert not torch.equal(model.eval()(X), float_output)

    set_fake_quantize(model, FakeQuantState.QAT)
    model.train()(X)
    assert ranges(model) != frozen
    model.apply(disable_observer)
    frozen = ranges(model)
    model(X)
    assert ranges(model) == frozen
    model.apply(enable_observer).apply(enable_fake_quant)
    with pytest.raises(TypeError, match="'state' must be a FakeQuantState, got 'qat'"):
        set_fake_quantize(model, "qat")


def test_a_frozen_batch_norm_stays_frozen_through_train_calls():
    model = prepare_qat(fused(), inplace=True)
    model(X)
    freeze_bn_stats(model)
    mean = model.conv.bn.running_mean.clone()
    model.train()(X + 1)
    assert torch.equal(model.conv.bn.running_mean, mean)
    unfreeze_bn_stats(model)
    model.train()(X + 1)
    assert not torch.equal(model.conv.bn.running_mean, mean)


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
        "'add' ran on the quantized result of 'conv' (uint8 codes): wrap the + in a FloatFunctional"
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


def test_a_submodule_called_directly_after_training_says_carry():
    model = prepare_qat(fused(), inplace=True)
    model(X)
    with pytest.raises(RuntimeError, match=r"conv: 'input' was quantized at an earlier call"):
        model.conv(X)
    with horizon.quantization.carry():
        model.conv(model.quant(X))


def test_activation_checkpointing_gives_the_same_gradients_and_ranges():
    class Checkpointed(Plain):
        checkpoint = False

        def forward(self, x: Tensor) -> Tensor:
            x = self.quant(x)
            if self.checkpoint:
                x = torch.utils.checkpoint.checkpoint(
                    self.conv, x, use_reentrant=False, context_fn=horizon.quantization.carry
                )
            else:
                x = self.conv(x)
            return self.dequant(self.fc(self.pool(x).flatten(1)))

    net = Checkpointed().train()
    fuse_modules(net, ["conv", "bn", "relu"], inplace=True)
    model = prepare_qat(with_qconfig(net), inplace=True)
    other = copy.deepcopy(model)
    other.checkpoint = True
    for m in (model, other):
        m(X).square().sum().backward()
    assert ranges(model) == ranges(other)
    for (name, p), q in zip(model.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad), name


def test_a_batch_with_nan_raises_with_the_layer_and_leaves_the_ranges():
    model = prepare_qat(fused(), inplace=True)
    model(X)
    before = ranges(model)
    bad = X.clone()
    bad[0, 0, 0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"quant: observe: 'x' must be finite, got nan"):
        model(bad)
    assert ranges(model) == before


def test_nan_policy_skip_warns_and_leaves_the_ranges():
    net = fused()
    net.qconfig = get_default_qat_qconfig(activation_qkwargs={"nan_policy": "skip"})
    net.quant.qconfig = net.qconfig
    stub = nn.Sequential(QuantStub(), nn.Identity())
    stub.qconfig = net.qconfig
    model = prepare_qat(stub, inplace=True).train()
    model(X)
    before = ranges(model)
    bad = X.clone()
    bad[0, 0, 0, 0] = float("inf")
    with pytest.warns(UserWarning, match="0: a batch with nan or inf was skipped"):
        model(bad)
    model(bad)  # said once
    assert ranges(model) == before


def test_a_qconfig_of_none_leaves_a_layer_float_and_the_report_says_why():
    net = fused()
    net.fc.qconfig = None
    model = prepare_qat(net, inplace=True)
    rows = {row.name: row for row in report(model)}
    assert type(model.fc) is nn.Linear
    assert rows["fc"].state == "float"
    assert "qconfig is None" in rows["fc"].note
    assert rows["conv"].note == "weight qint8 per channel, output qint8"
    assert (rows["bn"].state, rows["bn"].note) == ("fused", "into conv")
    assert "fake-quantized" in str(report(model))


def test_an_unknown_activation_is_reported_as_float():
    net = nn.Sequential(QuantStub(), nn.Conv2d(3, 4, 1), nn.Hardswish(), DeQuantStub())
    model = prepare_qat(with_qconfig(net), inplace=True)
    assert report(model).float_layers == ["2"]
    model(X)
    with pytest.raises(ValueError, match=r"3: 'input' comes from 'hardswish', a float op"):
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


FUNCTIONALS = {
    "add": lambda ff, x, y: ff.add(x, y),
    "add_relu": lambda ff, x, y: ff.add_relu(x, y),
    "sub": lambda ff, x, y: ff.sub(x, y),
    "mul": lambda ff, x, y: ff.mul(x, y),
    "add_scalar": lambda ff, x, y: ff.add_scalar(x, 0.75),
    "mul_scalar": lambda ff, x, y: ff.mul_scalar(x, -1.5),
    "cat": lambda ff, x, y: ff.cat([x, y], 1),
    "mean": lambda ff, x, y: ff.mean(x, [2, 3], True),
    "matmul": lambda ff, x, y: ff.matmul(x, y.transpose(2, 3)),
}


@pytest.mark.parametrize("backend", ["horizon", "x86"])
@pytest.mark.parametrize("name", FUNCTIONALS)
def test_functionals_are_exact_from_prepared_to_script(name, backend):
    call = FUNCTIONALS[name]

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.quant_x, self.quant_y, self.dequant = QuantStub(), QuantStub(), DeQuantStub()
            self.ff = FloatFunctional()

        def forward(self, x: Tensor) -> Tensor:
            return self.dequant(call(self.ff, self.quant_x(x), self.quant_y(0.3 * x + 0.1)))

    net = with_qconfig(Net(), get_default_qat_qconfig(backend=backend)).train()
    reference = call(FloatFunctional(), X, 0.3 * X + 0.1)
    model = prepare_qat(net, inplace=True)
    model(X)
    y = model.eval()(X)
    scale = model.ff.activation_post_process.scale.item()
    assert (y - reference).abs().max() < 3 * scale + 0.05 * reference.abs().max()
    with torch.no_grad():
        int8 = convert(model)
        assert torch.equal(int8(X), y)
        assert torch.equal(trace(int8, X)(X), y)
    x = X.clone().requires_grad_()
    model(x).sum().backward()
    assert x.grad.abs().sum() > 0


SINGLE = {
    "avg_pool": nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False),
    "adaptive": nn.AdaptiveAvgPool2d((2, None)),
    "relu6": nn.ReLU6(),
    "hardtanh": nn.Hardtanh(0.0, 6.0),
    "batch_norm": nn.BatchNorm2d(3),
    "bilinear": nn.Upsample(scale_factor=2, mode="bilinear"),
    "nearest": nn.Upsample(scale_factor=2),
    "max_pool": nn.MaxPool2d(3, 2, 1),
    "adaptive_max": nn.AdaptiveMaxPool2d(2),
    "relu": nn.ReLU(),
    "relu_inplace": nn.ReLU(inplace=True),
    "pixel_shuffle": nn.Sequential(nn.Conv2d(3, 4, 1), nn.PixelShuffle(2)),
    "zero_pad": nn.ZeroPad2d(1),
    "reflection": nn.ReflectionPad2d(1),
    "dropout": nn.Dropout(0.5),
    "flatten": nn.Flatten(),
}


@pytest.mark.parametrize("backend", ["horizon", "x86"])
@pytest.mark.parametrize("name", SINGLE)
def test_single_layers_are_exact_and_close_to_float(name, backend):
    layer = randomize(copy.deepcopy(SINGLE[name]))
    x = 4 * X + 1
    net = nn.Sequential(QuantStub(), layer, DeQuantStub()).eval()
    expected = net(x).detach()
    model = prepare_qat(with_qconfig(net, get_default_qat_qconfig(backend=backend)), inplace=True)
    set_fake_quantize(model, FakeQuantState.CALIBRATION)
    model(x)
    set_fake_quantize(model, FakeQuantState.QAT)
    y = model(x)
    assert y.shape == expected.shape
    assert (y - expected).abs().max() < 0.03 * x.abs().max()
    with torch.no_grad():
        int8 = convert(model)
        assert torch.equal(int8(x), y)
        assert torch.equal(trace(int8, x)(x), y)
    given = x.clone().requires_grad_()
    model.train()(given).sum().backward()
    assert given.grad.isfinite().all()


def test_functional_ops_between_modules_keep_the_grid():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.quant, self.dequant = QuantStub(), DeQuantStub()
            self.conv, self.last = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            y = F.relu(self.conv(self.quant(x)))
            y = F.interpolate(F.max_pool2d(y, 2), scale_factor=2)
            a, b = y.chunk(2, 1)
            y = torch.cat([a, b], 1).permute(0, 1, 3, 2).contiguous()
            return self.dequant(self.last(F.pad(y, (1, 1, 1, 1))[:, :, 1:-1]))

    for backend in ("horizon", "x86"):
        model = prepared(Net(), X, backend)
        assert report(model).float_layers == []
        y = model(X)
        with torch.no_grad():
            int8 = convert(model)
            assert torch.equal(int8(X), y)
            assert torch.equal(trace(int8, X)(X), y)
            with pytest.raises(RuntimeError, match=r"a functional .(relu|pad). runs on quantized"):
                script(int8)


def test_changing_a_quantized_tensor_in_place_is_an_error():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.quant, self.conv, self.dequant = QuantStub(), nn.Conv2d(3, 4, 1), DeQuantStub()

        def forward(self, x: Tensor) -> Tensor:
            y = self.quant(x)
            y.data.mul_(2)
            z = y.view(-1)
            with torch.no_grad():
                z.mul_(1.5)
            return self.dequant(self.conv(y))

    model = prepare_qat(with_qconfig(Net().train()), inplace=True)
    with pytest.raises(RuntimeError, match=r"conv: 'input' \(the result of quant\) was changed in"):
        model(X)


def test_one_functional_at_two_places_warns():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.ff, self.out = (
                QuantStub(),
                QuantStub(),
                FloatFunctional(),
                DeQuantStub(),
            )

        def forward(self, x: Tensor) -> Tensor:
            a, b = self.a(x), self.b(2 * x)
            return self.out(self.ff.add(self.ff.add(a, b), a))

    model = prepare_qat(with_qconfig(Net().train()), inplace=True)
    with pytest.warns(UserWarning, match="ff: one FloatFunctional is used at several places"):
        model(X)


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


class SharedRelu(nn.Module):
    """Two convolutions behind one nn.ReLU, as many published networks are written."""

    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant = QuantStub(), DeQuantStub()
        self.conv1, self.conv2 = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1)
        self.relu, self.pool = nn.ReLU(inplace=True), nn.MaxPool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.relu(self.conv1(self.quant(x))))
        return self.dequant(self.pool(self.relu(self.conv2(x))))


def test_a_relu_and_a_pool_that_are_shared_script_where_zero_points_agree():
    with torch.no_grad():
        model = prepared_in_eval(SharedRelu(), "horizon")
        int8 = convert(model)
        assert torch.equal(int8(X), model(X))
        assert torch.equal(script(int8)(X), model(X))
        model = prepared_in_eval(SharedRelu(), "x86")
        int8 = convert(model)
        assert torch.equal(int8(X), model(X))
        with pytest.raises(RuntimeError, match="relu is called with results of conv1 and conv2"):
            script(int8)


def prepared_in_eval(net: nn.Module, backend: str) -> nn.Module:
    model = prepare_qat(with_qconfig(net.train(), get_default_qat_qconfig(backend=backend)))
    model(X)
    return model.eval()
