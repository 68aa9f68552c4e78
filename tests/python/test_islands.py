"""Float islands: modules with qconfig None between quantized ones."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from plain import X, with_qconfig
from stages import assert_all_equal, later_stages, prepared, reload, script, trace
from torch import Tensor, nn

from horizon_plugin.quantization import (
    DeQuantStub,
    FloatFunctional,
    QuantStub,
    convert,
    fuse_modules,
    get_default_qat_qconfig,
    load_float_state_dict,
    prepare_qat,
    report,
)

BACKENDS = ("horizon", "tensorrt", "x86")


class Middle(nn.Module):
    """conv, an island, conv; what stands between island and last layer is the subclass's."""

    def __init__(self, island: nn.Module) -> None:
        super().__init__()
        self.quant, self.dequant = QuantStub(), DeQuantStub()
        self.first, self.last = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 4, 1)
        self.island = island
        self.island.qconfig = None

    def forward(self, x: Tensor) -> Tensor:
        return self.dequant(self.last(self.island(self.first(self.quant(x)))))


ISLANDS = {
    "layer": lambda: nn.Conv2d(6, 6, 3, padding=1),
    "unsupported": lambda: nn.LayerNorm((6, 6, 6)),
    "block": lambda: nn.Sequential(nn.Conv2d(6, 6, 1), nn.BatchNorm2d(6), nn.SiLU(inplace=True)),
    "in place": lambda: nn.SiLU(inplace=True),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ISLANDS)
def test_an_island_between_quantized_layers_is_exact_at_every_stage(name, backend):
    model = prepared(Middle(ISLANDS[name]()).train(), X, backend)
    assert_all_equal(later_stages(model, X))


def test_an_island_computes_the_float_module_on_the_real_values_of_its_operand():
    model = prepared(Middle(nn.GroupNorm(2, 6)).train(), X)
    seen = {}
    model.island.module.register_forward_hook(lambda m, args, y: seen.update(x=args[0], y=y))
    model(X)
    scale = model.first.activation_post_process.scale
    codes = seen["x"] / scale
    assert (codes - codes.round()).abs().max() < 1e-4
    assert torch.equal(seen["y"], model.island.module(seen["x"]))
    float_values = dict(seen)
    convert(model)(X)
    assert torch.equal(seen["x"], float_values["x"])


def test_the_report_shows_what_stands_around_an_island():
    net = Middle(nn.GroupNorm(2, 6)).train()
    rows = {row.name: row for row in report(prepare_qat(with_qconfig(net)))}
    assert rows["island"].note == ("GroupNorm (quantized where a quantized layer takes its result)")
    model = prepared(net, X)
    for stage in (model, convert(model)):
        rows = {row.name: row for row in report(stage)}
        assert rows["island"].state == "float island"
        assert rows["island"].note == "dequantize → GroupNorm → quantize"
        assert report(stage).float_layers == ["island"]


class Head(nn.Module):
    """A float head whose result leaves the model, with or without a stub."""

    def __init__(self, stub: nn.Module) -> None:
        super().__init__()
        self.quant, self.conv = QuantStub(), nn.Conv2d(3, 4, 1)
        self.head = nn.Conv2d(4, 2, 3)
        self.head.qconfig = None
        self.stub = stub

    def forward(self, x: Tensor) -> Tensor:
        return self.stub(self.head(self.conv(self.quant(x))))


@pytest.mark.parametrize("stub", [DeQuantStub, nn.Identity])
def test_the_result_of_a_float_head_is_never_quantized(stub):
    model = prepared(Head(stub()).train(), X)
    outputs = later_stages(model, X)
    assert_all_equal(outputs)
    assert outputs["prepared"].unique().numel() == outputs["prepared"].numel()
    assert model.head.activation_post_process.observed == 0
    assert {row.name: row.note for row in report(model)}["head"] == (
        "dequantize → Conv2d, output float"
    )


def test_a_head_may_return_infinities():
    net = Head(nn.Identity()).train()
    net.head = nn.Softmax(1)
    net.head.qconfig = None
    net.head.register_forward_hook(lambda m, args, y: y.log())
    model = prepare_qat(with_qconfig(net), inplace=True)
    x = 1e4 * X
    model(x)
    assert model(x).isinf().any()


class Between(Middle):
    """Functions that keep a grid stand between the island and its consumer."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.island(self.first(self.quant(x))))
        return self.dequant(self.last(F.max_pool2d(x, 2).permute(0, 1, 3, 2)))


class Relu(Middle):
    """A module that keeps the grid stands there."""

    def __init__(self, island: nn.Module) -> None:
        super().__init__(island)
        self.relu, self.pool = nn.ReLU(), nn.MaxPool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.relu(self.island(self.first(self.quant(x)))))
        return self.dequant(self.last(x))


class Added(Middle):
    """A functional is the consumer, in both operands' places."""

    def __init__(self, island: nn.Module) -> None:
        super().__init__(island)
        self.add, self.cat = FloatFunctional(), FloatFunctional()
        self.last = nn.Conv2d(12, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(self.quant(x))
        y = self.add.add(self.island(x), x)
        return self.dequant(self.last(self.cat.cat([x, y], 1)))


class Fused(Middle):
    """The skip of a fused group is an island's result."""

    def __init__(self, island: nn.Module) -> None:
        super().__init__(island)
        self.add = FloatFunctional()

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(self.quant(x))
        return self.dequant(self.add.add(self.last(x), self.island(x)))


@pytest.mark.parametrize("net", [Between, Relu, Added])
def test_consumers_of_an_island_are_exact(net):
    model = prepared(net(nn.Conv2d(6, 6, 1)).train(), X, "x86")
    assert_all_equal(later_stages(model, X))


def test_the_skip_of_a_fused_group_may_be_an_island():
    net = Fused(nn.Conv2d(6, 4, 1)).train()
    fuse_modules(net, ["last", "add"], inplace=True)
    assert_all_equal(later_stages(prepared(net, X), X))


def test_a_float_op_on_an_islands_result_is_float_and_its_consumer_says_so():
    class Raw(Middle):
        def forward(self, x: Tensor) -> Tensor:
            y = self.island(self.first(self.quant(x)))
            return self.dequant(self.last(y + 1))

    model = prepared(Raw(nn.Conv2d(6, 6, 1)).train(), X)
    with pytest.raises(ValueError, match=r"last: 'input' comes from 'add', a float op on the res"):
        convert(model)


class Two(nn.Module):
    """An island with two operands, a keyword and two results."""

    def forward(self, x: Tensor, y: Tensor, *, factor: float) -> tuple[Tensor, dict[str, Tensor]]:
        return x * y * factor, {"mean": x.mean(), "index": y.argmax()}


def test_an_island_takes_and_returns_several_tensors():
    class Net(Middle):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            x = self.first(self.quant(x))
            y, others = self.island(x, self.last(x), factor=0.5)
            return self.dequant(y), others["index"]

    net = Net(Two()).train()
    net.last = nn.Conv2d(6, 6, 1)
    model = prepare_qat(with_qconfig(net), inplace=True)
    model(X)
    model.eval()
    with torch.no_grad():
        y, index = model(X)
        int8 = convert(model)
        assert torch.equal(int8(X)[0], y)
        assert torch.equal(int8(X)[1], index)
        assert torch.equal(trace(int8, X)(X)[0], y)
        with pytest.raises(RuntimeError, match="island is a float island that takes more than one"):
            script(int8)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_islands_keep_the_models_dtype(dtype):
    x = X.to(dtype)
    model = prepared(Middle(nn.Conv2d(6, 6, 1)).to(dtype).train(), x)
    outputs = later_stages(model, x)
    assert outputs["converted"].dtype == dtype
    assert_all_equal(outputs)


def test_code_that_looks_into_an_island_still_finds_what_it_holds():
    block = nn.Sequential(nn.Conv2d(6, 6, 1), nn.SiLU())
    block.note = "mine"
    model = prepare_qat(with_qconfig(Middle(block).train()), inplace=True)
    assert model.island[0] is block[0]
    assert model.island.note == "mine"
    assert [type(m) for m in model.island] == [nn.Conv2d, nn.SiLU]
    with pytest.raises(AttributeError, match="no attribute 'absent'"):
        _ = model.island.absent


def test_a_float_state_dict_finds_its_way_into_islands():
    def make() -> Middle:
        torch.manual_seed(5)
        net = Middle(nn.Sequential(nn.Conv2d(6, 6, 1), nn.BatchNorm2d(6)))
        return net.train()

    source = make()
    nn.init.constant_(source.island[0].weight, 0.25)
    net = make()
    fuse_modules(net, ["island.0", "island.1"], inplace=True)
    model = prepare_qat(with_qconfig(net), inplace=True)
    load_float_state_dict(model, source.state_dict())
    assert (model.island[0].weight == 0.25).all()


def test_only_a_module_inside_a_quantized_part_is_an_island():
    net = Middle(nn.Conv2d(6, 6, 1))
    for name in ("quant", "first", "last"):
        getattr(net, name).qconfig = get_default_qat_qconfig()
    model = prepare_qat(net.train(), inplace=True)
    assert type(model.island) is nn.Conv2d


def test_a_list_of_modules_without_a_qconfig_is_a_list_of_islands():
    class Net(Middle):
        def forward(self, x: Tensor) -> Tensor:
            x = self.first(self.quant(x))
            for layer in self.island:
                x = layer(x)
            return self.dequant(self.last(x))

    net = Net(nn.ModuleList([nn.Conv2d(6, 6, 1), nn.Tanh()])).train()
    model = prepared(net, X)
    assert report(model).float_layers == ["island.0", "island.1"]
    with torch.no_grad():
        assert torch.equal(convert(model)(X), model(X))


def test_reloaded_traces_of_islands_are_exact_for_other_batches():
    model = prepared(Middle(nn.Softmax(1)).train(), X)
    other = torch.randn(7, 3, 5, 9)
    with torch.no_grad():
        traced = reload(trace(convert(model), X))
        assert torch.equal(traced(other), model(other))
