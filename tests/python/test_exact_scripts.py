"""Traces as users make them, compilation, and export: the bits of prepared eval there too."""

from __future__ import annotations

import copy

import pytest
import torch
from stages import prepared, silent_jit
from torch import Tensor, nn

from horizon_plugin.quantization import (
    DeQuantStub,
    FloatFunctional,
    QuantStub,
    convert,
    fuse,
    get_default_qat_qconfig,
    prepare_qat,
)

X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])


class Functional(nn.Module):
    """One method of a FloatFunctional on a tensor and another one."""

    def __init__(self, method: str) -> None:
        super().__init__()
        self.functional, self.method = FloatFunctional(), method
        two = method in ("add", "sub", "mul", "cat")
        self.other = nn.Conv2d(4, 4, 1) if two else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        if self.method == "cat":
            return self.functional.cat([x, self.other(x)], 1)
        if self.method == "mean":
            return self.functional.mean(x, (2, 3), True)
        if self.method.endswith("scalar"):
            return getattr(self.functional, self.method)(x, 0.5)
        return getattr(self.functional, self.method)(x, self.other(x))


class PerSample(nn.Module):
    """A module that has no quantized form."""

    def forward(self, x: Tensor) -> Tensor:
        return x / (1 + x.abs().amax((1, 2, 3), keepdim=True))


def island(module: nn.Module) -> nn.Module:
    module.qconfig = None
    return module


LAYERS = {
    "convolution": lambda: nn.Conv2d(4, 4, 1),
    "transposed": lambda: nn.ConvTranspose2d(4, 4, 2, 2),
    "batch_norm": lambda: nn.BatchNorm2d(4),
    "relu6": lambda: nn.ReLU6(),
    "average_pool": lambda: nn.AvgPool2d(2),
    "adaptive_pool": lambda: nn.AdaptiveAvgPool2d(2),
    "max_pool": lambda: nn.MaxPool2d(2),
    "bilinear": lambda: nn.UpsamplingBilinear2d(scale_factor=2),
    "table": lambda: nn.Hardswish(),
    "slope": lambda: nn.PReLU(),
    "slopes": lambda: nn.PReLU(4),
    "group_norm_island": lambda: island(nn.GroupNorm(2, 4)),
    "own_island": lambda: island(PerSample()),
    **{
        name: lambda name=name: Functional(name)
        for name in ("add", "sub", "mul", "cat", "mean", "add_scalar", "mul_scalar")
    },
}


def model_with(layer: nn.Module, backend: str = "") -> nn.Module:
    """The layer behind a convolution, before a pool; trained, and in eval mode."""
    pool = nn.MaxPool2d(1)
    net = nn.Sequential(QuantStub(), nn.Conv2d(3, 4, 1), layer, pool, DeQuantStub()).train()
    return prepared(fuse(net, (X,), inplace=True), X, backend)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")  # of nn.GroupNorm itself
@pytest.mark.parametrize("name", LAYERS)
def test_a_trace_in_grad_mode_passes_its_own_checks_and_gives_the_bits(name):
    model = model_with(LAYERS[name]())
    expected = model(X)
    assert expected.requires_grad
    int8 = convert(model)
    for stage in (model, int8):
        traced = silent_jit(torch.jit.trace, stage, X)  # checks run without gradients
        assert torch.equal(traced(X), expected)


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_of_prepared_eval_reach_the_input_and_every_parameter(name):
    model = model_with(LAYERS[name]())
    x = X.clone().requires_grad_()
    model.zero_grad()
    model(x).square().sum().backward()
    assert x.grad.abs().sum() > 0
    missing = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert missing == []


@pytest.mark.parametrize("backend", ["horizon", "x86"])
def test_compiled_graphs_and_exported_programs_give_the_bits(backend):
    layers = [make() for name, make in LAYERS.items() if name not in ("cat", "mean")]
    model = model_with(nn.Sequential(*layers, LAYERS["cat"](), LAYERS["mean"]()), backend)
    with torch.no_grad():
        expected = model(X)
        for stage in (model, convert(model)):
            torch._dynamo.reset()
            compiled = torch.compile(copy.deepcopy(stage), fullgraph=True, backend="aot_eager")
            assert torch.equal(compiled(X), expected)
            program = torch.export.export(stage, (X,), strict=False)
            assert torch.equal(program.module()(X), expected)


class Chunks(nn.Module):
    """Views and a pool with indices, whose results are members of tuples."""

    def __init__(self) -> None:
        super().__init__()
        self.cat = FloatFunctional()

    def forward(self, x: Tensor) -> Tensor:
        first, second = x.chunk(2, 1)
        pooled, _ = nn.functional.max_pool2d_with_indices(x[:, :2], 3, 1, 1)
        return self.cat.cat([second, pooled, first], 1)


def test_members_of_tuples_keep_their_grid_when_compiled():
    model = model_with(Chunks())
    torch._dynamo.reset()
    with torch.no_grad():
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(X), model(X))


def test_a_compiled_training_step_moves_what_an_eager_one_moves():
    net = nn.Sequential(QuantStub(), nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU())
    net.append(nn.Hardswish()).append(DeQuantStub())
    net = fuse(net.train(), (X,), inplace=True)
    net.qconfig = get_default_qat_qconfig()
    eager = prepare_qat(net, inplace=True)
    compiled = copy.deepcopy(eager)
    torch._dynamo.reset()
    for model, call in (
        (eager, eager),
        (compiled, torch.compile(compiled, fullgraph=True, backend="aot_eager")),
    ):
        call(X).square().sum().backward()
        assert model[1].weight.grad.abs().sum() > 0
    for (name, value), other in zip(
        eager.state_dict().items(), compiled.state_dict().values(), strict=True
    ):
        assert torch.equal(value, other), name
    for (name, value), other in zip(eager.named_parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(value.grad, other.grad, msg=name)


class Raw(nn.Module):
    """A float op between two convolutions: trained, and refused by convert."""

    def __init__(self, op: str) -> None:
        super().__init__()
        self.first, self.second, self.op = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1), op

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.op == "augmented":
            x += 0.3
        elif self.op == "in_place":
            x.add_(0.3)
        elif self.op == "item":
            x[:, 0] = 0.3
        elif self.op == "member":
            x = torch.max(x, 1, keepdim=True)[0].expand(-1, 4, -1, -1)
        else:
            x = x.abs()
        return self.second(x)


# torch 2.14 compiles the assignment to an item without telling function modes of it.
ITEM = pytest.param(
    "item",
    marks=pytest.mark.skipif(
        TORCH >= (2, 14), reason="torch.compile hides the assignment (docs/design.md)"
    ),
)


@pytest.mark.parametrize("op", ["augmented", "in_place", ITEM, "member", "method"])
def test_a_float_op_on_quantized_data_is_float_when_compiled_as_well(op):
    model = prepared(nn.Sequential(QuantStub(), Raw(op), DeQuantStub()), X)
    with torch.no_grad():
        expected = model(X)
        torch._dynamo.reset()
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(X), expected)
