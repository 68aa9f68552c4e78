"""Groups can be looked at, run alone, run together, and handed to a backend."""

from __future__ import annotations

import pytest
import torch
from jit_networks import SCRIPTS, example, load, scripted, traced
from networks import NETWORKS, randomize
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from horizon_plugin import jit
from horizon_plugin.quantization import fuse_modules, get_default_qat_qconfig, prepare_qat

each_script = pytest.mark.parametrize(("name", "how"), SCRIPTS, ids=lambda v: v)


def run(module, x: Tensor) -> list[Tensor]:
    with torch.no_grad():
        return tree_leaves(module(x.clone()))


class Chain(nn.Module):
    """Three groups without anything between them."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x).relu()
        return (self.b(y)[:, :, :] + 1.0).relu()


class Sized(nn.Module):
    """A group whose own size scales its result, read inside, between and outside."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        y = self.a(x)
        return (y * y.size(1)).relu(), y.size(2) + 1


def test_a_group_names_its_anchor_nodes_entries_and_exits():
    made = jit.partition(traced(Chain().eval(), torch.randn(1, 3, 8, 8)))
    first, second = jit.groups(made)
    assert first.anchor.kind() == "aten::_convolution"
    assert [node.kind() for node in first.nodes] == ["aten::_convolution", "aten::relu"]
    (entry,), (exit_,) = first.entries, first.exits
    pair = next(n for n in made.graph.nodes() if n.kind() == "annotation::stop_fusion")
    assert entry == pair.output().debugName()
    assert exit_ == first.nodes[-1].output().debugName()
    assert [node.kind() for node in second.nodes] == ["aten::_convolution"]
    assert [g.index for g in (first, second)] == [0, 1]


def test_groups_run_one_after_the_other_are_the_whole():
    module = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 5, 3), nn.ReLU6()
    )
    x = torch.randn(2, 3, 16, 16)
    made = jit.partition(traced(module.eval(), x))
    y = x
    for group in jit.groups(made):
        y = group.function()(y)
    assert torch.equal(y, made(x))
    z = x
    for group in jit.groups(made):
        z = group.module()(z)
    assert torch.equal(z, y)


@each_script
def test_a_module_of_groups_computes_the_same_bits(name, how, tmp_path):
    made, x = jit.partition(load(name, how)), example(name)
    whole = jit.delegate(made)
    count = len(jit.groups(made))
    calls = [n for n, _ in whole.named_children() if n.startswith("group_")]
    # y[:, 0] = 0 writes into the result of a group, which stays where it is.
    assert len(calls) == count - (name == "in place") > 0
    expected = run(made, x)
    for _ in range(2):
        assert all(map(torch.equal, run(whole, x), expected))
    jit.save(whole, tmp_path / "groups.pt")
    assert all(map(torch.equal, run(jit.load(tmp_path / "groups.pt"), x), expected))


@each_script
def test_every_convolution_that_is_quantized_anchors_one_group(name, how):
    made = jit.partition(load(name, how))
    quantized = [row for row in jit.report(made).convolutions if row.status == "quantized"]
    anchors = [group.anchor for group in jit.groups(made) if group.anchor is not None]
    assert len(anchors) == len(quantized)
    members = [node.output().debugName() for g in jit.groups(made) for node in g.nodes]
    assert len(members) == len(set(members))


@pytest.mark.parametrize("how", ["trace", "script"])
def test_a_group_holds_what_it_needs_of_its_own_results(how):
    x = torch.randn(2, 3, 8, 8)
    net = Sized().eval()
    script = scripted(net) if how == "script" else traced(net, x)
    made = jit.partition(script)
    whole = jit.delegate(made)
    for a, b in zip(whole(x), made(x), strict=True):
        assert torch.equal(torch.as_tensor(a), torch.as_tensor(b))


def test_a_backend_sees_every_group_and_replaces_those_it_wants():
    x = torch.randn(2, 3, 8, 8)
    made = jit.partition(traced(Chain().eval(), x))
    seen = []

    def backend(group: jit.Group) -> torch.jit.ScriptModule | None:
        seen.append(group.index)
        if group.index == 1:
            return None
        return traced(Twice(group.function()), torch.randn(1, 3, 8, 8))

    class Twice(nn.Module):
        def __init__(self, function) -> None:
            super().__init__()
            self.function = function

        def forward(self, entry: Tensor) -> Tensor:
            return 2 * self.function(entry)

    replaced = jit.delegate(made, backend)
    first, second = jit.groups(made)
    rest = second.function()(2 * first.function()(x))
    assert seen == [0, 1]
    assert torch.equal(replaced(x), (rest + 1.0).relu())


@pytest.mark.parametrize(
    ("result", "error", "text"),
    [
        (lambda group: 3, TypeError, "must return a ScriptModule"),
        (
            lambda group: traced(nn.Bilinear(1, 1, 1), torch.ones(1), torch.ones(1)),
            ValueError,
            "that takes the 1 entries of group 0, got one that takes 2",
        ),
    ],
)
def test_a_backend_that_returns_something_else_is_refused(result, error, text):
    made = jit.partition(traced(Chain().eval(), torch.randn(1, 3, 8, 8)))
    with pytest.raises(error, match=text):
        jit.delegate(made, result)


def test_functions_and_graphs_come_back_as_what_they_were():
    weight = torch.randn(4, 3, 3, 3)

    def compute(x: Tensor, w: Tensor) -> Tensor:
        return torch.nn.functional.conv2d(x, w).relu()

    x = torch.randn(1, 3, 8, 8)
    script = traced(compute, x, weight)
    before = str(script.graph)
    made = jit.partition(script)
    assert isinstance(made, torch.jit.ScriptFunction)
    assert made.name == script.name
    assert torch.equal(made(x, weight), script(x, weight))
    assert jit.report(made).convolutions[0].status == "quantized"
    assert "annotation" not in jit.dump(jit.strip(made))
    assert isinstance(jit.partition(script.graph), torch.Graph)
    (group,) = jit.groups(made)
    assert torch.equal(group.function()(x, weight), made(x, weight))
    assert str(script.graph) == before
    with pytest.raises(TypeError, match="must be a partitioned ScriptModule, got ScriptFunction"):
        jit.delegate(made)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_groups_of_a_prepared_model_are_its_fused_modules(name):
    torch.manual_seed(0)
    net = randomize(NETWORKS[name]())
    fuse_modules(net, net.groups(), inplace=True)
    net.qconfig = get_default_qat_qconfig()
    prepare_qat(net, inplace=True)
    x = example(name)
    net(x)
    net.eval()
    script = traced(net, x)
    made = jit.partition(
        script, skip_dense_layer=False, anchors=("conv1d", "conv2d", "conv_transpose2d")
    )
    fused = [n for n in made.graph.nodes() if n.kind() == "horizon::fused"]
    anchors = [group.anchor for group in jit.groups(made) if group.anchor is not None]
    assert [str(node) for node in anchors] == [str(node) for node in fused]
    assert len(fused) >= net.group_count
    assert all(map(torch.equal, run(made, x), run(net, x)))
    assert all(map(torch.equal, run(jit.delegate(made), x), run(net, x)))
