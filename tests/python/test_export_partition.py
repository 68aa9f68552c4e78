"""The partition of torch.export programs is that of TorchScript graphs."""

from __future__ import annotations

import pytest
import torch
from jit_networks import network, randomize, traced
from networks import ALL_NETWORKS
from residual import IMAGE, trained_residual
from test_exact_networks import flat
from test_export_programs import export, reload
from torch import Tensor, nn

from horizon_plugin import jit
from horizon_plugin.export import partition

# Spelled differently by a trace; batch norms are folded into convolutions there, and not here.
RENAMED = {"_convolution": "conv", "conv2d": "conv", "conv_transpose2d": "conv"}


def words(names: list[str]) -> list[str]:
    plain = [name.split("::")[1].rstrip("_") for name in names]
    return [RENAMED.get(name, name) for name in plain if name != "batch_norm"]


def script_groups(script: torch.jit.ScriptModule) -> list[tuple[list[str], int, int]]:
    return [
        (words([node.kind() for node in group.nodes]), len(group.entries), len(group.exits))
        for group in jit.groups(script)
    ]


def program_groups(made) -> list[tuple[list[str], int, int]]:
    nodes = {node.name: node for node in made.program.graph.nodes}
    return [
        (
            words([nodes[name].target._schema.name for name in group.nodes]),
            len(group.entries),
            len(group.exits),
        )
        for group in made.groups
    ]


def example(name: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    net = randomize(ALL_NETWORKS[name]()).eval()
    return net, torch.randn(ALL_NETWORKS[name].input_shape)


NAMES = ("unet", "mobilenet_v3", "densenet", "shufflenet_v2")


@pytest.mark.parametrize("name", NAMES)
def test_groups_equal_those_of_the_torchscript_pass(name):
    net, x = example(name)
    made = partition(export(net, x))
    script = jit.partition(network(name))
    assert program_groups(made) == script_groups(script)
    statuses = [row.status for row in made.convolutions]
    assert statuses == [row.status for row in jit.report(script).convolutions]
    modules = dict(net.named_modules())
    # Transposed convolutions are reported, and no anchors by default.
    kinds = (nn.Conv2d, nn.ConvTranspose2d)
    assert all(isinstance(modules[row.scope], kinds) for row in made.convolutions)
    with torch.no_grad():
        results, expected = flat(made.program.module()(x)), flat(net(x))
    assert all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))


def test_groups_of_a_prepared_model_are_its_fused_modules():
    model = trained_residual()
    with torch.no_grad():
        script = jit.partition(traced(model, IMAGE), prepare=True)
        made = partition(export(model, IMAGE))
        # Quantizers' buffers are values in a script, and constants in a program.
        assert [row[0] for row in program_groups(made)] == [row[0] for row in script_groups(script)]
        assert torch.equal(made.program.module()(IMAGE), model(IMAGE))
    paths = [name for name, layer in model.named_modules() if hasattr(layer, "bn")]
    assert [row.scope for row in made.convolutions] == paths
    assert all(len(group.nodes) == 1 and group.anchor == group.nodes[0] for group in made.groups)


class Branches(nn.Module):
    """A shared value, an add of two convolutions, an in-place relu, a linear layer, a cat."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 1)
        self.t, self.fc = nn.ConvTranspose2d(4, 4, 2, 2), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.a(x).relu_()
        z = (self.b(y) + y).relu()
        pooled = torch.cat([self.t(z), self.t(y)], 1).mean((2, 3))
        return self.fc(pooled[:, :4]), z * 2.0


OPTIONS = [
    {},
    {"skip_conv_layers": [0]},
    {"skip_dense_layer": False, "dtype_input": "int16"},
    {"anchors": ("conv2d", "conv_transpose2d")},
    {"annotate_outputs": False},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options_mean_the_same_for_both_kinds_of_graphs(options):
    net, x = Branches().eval(), torch.randn(2, 3, 6, 6)
    made = partition(export(net, x), **options)
    script = jit.partition(traced(net, x), **options)
    assert program_groups(made) == script_groups(script)
    dumped = jit.dump(script)
    hints = [node for node in made.program.graph.nodes if "cast_hint" in str(node.target)]
    assert len(hints) == dumped.count("annotation.cast_hint")
    assert all(node.args[1] == options.get("dtype_input", "int8") for node in hints)


def test_a_partitioned_program_is_saved_loaded_and_partitioned_again(tmp_path):
    net, x = Branches().eval(), torch.randn(2, 3, 6, 6)
    program = export(net, x)
    code = str(program.graph)
    made = partition(program)
    assert str(program.graph) == code
    loaded = reload(made.program, tmp_path / "net.pt2")
    y = torch.randn(5, 3, 6, 6)
    with torch.no_grad():
        assert all(torch.equal(a, b) for a, b in zip(loaded.module()(y), net(y), strict=True))
    again = partition(made.program)
    assert str(again.program.graph) == str(made.program.graph)
    assert again.groups == made.groups
    with pytest.raises(ValueError, match=r"a pair of .* with dtype 'int8'; strip"):
        partition(made.program, dtype_input="uint8")


class Conditional(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y - 1, (x,))


BAD = {
    "module": (lambda p: {"program": Branches()}, TypeError, "'program' must be what torch.export"),
    "dtype": (lambda p: {"dtype_input": "int4"}, ValueError, "'dtype_input' must be"),
    "anchor": (lambda p: {"anchors": ["conv4d"]}, ValueError, "'anchors' must be among"),
    "number": (lambda p: {"skip_conv_layers": [9]}, ValueError, "'skip_conv_layers' must be"),
    "numbers": (lambda p: {"skip_conv_layers": "0"}, TypeError, "'skip_conv_layers' must be"),
    "control flow": (
        lambda p: {"program": torch.export.export(Conditional(), (torch.ones(2),))},
        ValueError,
        "'program' must be without control flow",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_wrong_arguments_are_named(name):
    program = export(Branches().eval(), torch.randn(2, 3, 6, 6))
    make, error, text = BAD[name]
    with pytest.raises(error, match=text):
        partition(**{"program": program, **make(program)})


def test_an_input_that_is_written_later_is_left_alone():
    class Written(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            y = self.a(x)
            x.relu_()
            return y + self.b(x)

    made = partition(torch.export.export(Written().eval(), (torch.randn(1, 3, 4, 4),)))
    assert [c.status for c in made.convolutions] == ["its input is written in place", "quantized"]
