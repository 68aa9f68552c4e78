"""What holds for every partition, on whole networks and on what scripts can hold."""

from __future__ import annotations

import re
from functools import cache

import pytest
import torch
from jit_networks import SCRIPTS, example, load
from torch import Tensor
from torch.utils._pytree import tree_leaves

from horizon_plugin import jit

OPTIONS = {
    "default": {},
    "everything": {
        "skip_dense_layer": False,
        "anchors": ("conv1d", "conv2d", "conv_transpose2d"),
        "dtype_input": "int16",
    },
    "raw outputs": {"annotate_outputs": False},
    "skip the first": {"skip_conv_layers": [0]},
}
each_script = pytest.mark.parametrize(("name", "how"), SCRIPTS, ids=lambda v: v)
each_option = pytest.mark.parametrize("options", OPTIONS)


@cache
def partitioned(name: str, how: str, options: str = "default") -> torch.jit.ScriptModule:
    """Shared by the tests, none of which changes it."""
    return jit.partition(load(name, how), **OPTIONS[options])


@cache
def unannotated(name: str, how: str) -> str:
    """The prepared graph: without convolutions to quantize nothing is annotated."""
    script = load(name, how)
    count = len(convolutions(partitioned(name, how).graph))
    prepared = jit.partition(script, skip_conv_layers=range(count))
    assert not hints(prepared.graph)
    return text(prepared.graph)


def nodes_of(block) -> list[torch.Node]:
    found = []
    for node in block.nodes():
        found.append(node)
        for inner in node.blocks():
            found += nodes_of(inner)
    return found


def kinds(graph: torch.Graph, kind: str) -> list[torch.Node]:
    return [node for node in nodes_of(graph) if node.kind() == kind]


def hints(graph: torch.Graph) -> list[torch.Node]:
    return kinds(graph, "annotation::cast_hint")


def stops(graph: torch.Graph) -> list[torch.Node]:
    return kinds(graph, "annotation::stop_fusion")


def text(graph: torch.Graph) -> str:
    """The graph with its values numbered in order, and without the name of its module."""
    lines = str(torch._C._jit_pass_canonicalize(graph)).splitlines()
    return "\n".join(re.sub(r"__torch__[\w.]*|, scope: .*| # .*", "", line) for line in lines)


def run(module: torch.jit.ScriptModule, x: Tensor) -> list[Tensor]:
    with torch.no_grad():
        return tree_leaves(module(x.clone()))


def convolutions(graph: torch.Graph) -> list[torch.Node]:
    return [n for n in nodes_of(graph) if "conv" in n.kind() and n.kind().startswith("aten::")]


@each_script
@each_option
def test_the_data_of_every_quantized_convolution_is_a_pair(name, how, options):
    made = partitioned(name, how, options)
    rows = jit.report(made).convolutions
    nodes = convolutions(made.graph)
    assert [row.number for row in rows] == list(range(len(nodes)))
    for row, node in zip(rows, nodes, strict=True):
        if row.status == "quantized":
            assert next(node.inputs()).node().kind() == "annotation::stop_fusion"


@each_script
@each_option
def test_annotations_come_in_pairs_and_a_value_has_at_most_one(name, how, options):
    made = partitioned(name, how, options)
    for hint in hints(made.graph):
        assert [use.user.kind() for use in hint.output().uses()] == ["annotation::stop_fusion"]
    for stop in stops(made.graph):
        assert next(stop.inputs()).node().kind() == "annotation::cast_hint"
    sources = [next(hint.inputs()).debugName() for hint in hints(made.graph)]
    assert len(sources) == len(set(sources))


@each_script
def test_every_path_between_two_anchors_crosses_a_stop_fusion(name, how):
    made = jit.partition(load(name, how), skip_dense_layer=False)
    quantized = [
        node
        for row, node in zip(jit.report(made).convolutions, convolutions(made.graph), strict=True)
        if row.status == "quantized"
    ]
    # A path reaches a convolution through its data or its bias; its weight is never annotated.
    for node in quantized:
        seen, work = set(), [list(node.inputs())[i] for i in (0, 2)]
        while work:
            value = work.pop()
            producer = value.node()
            if value.debugName() in seen or producer.kind() == "annotation::stop_fusion":
                continue
            seen.add(value.debugName())
            assert producer not in quantized
            work += list(producer.inputs())


@each_script
@each_option
def test_stripping_gives_back_the_prepared_graph(name, how, options):
    made = partitioned(name, how, options)
    assert text(jit.strip(made.graph)) == unannotated(name, how)
    assert text(jit.strip(made).graph) == unannotated(name, how)


@each_script
def test_outputs_are_those_of_the_prepared_graph_to_the_bit(name, how):
    script, x = load(name, how), example(name)
    made = partitioned(name, how)
    expected = run(jit.strip(made), x)
    assert hints(made.graph)
    for _ in range(3):  # the executor optimizes after the first run
        results = run(made, x)
        assert all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))
    for a, b in zip(run(script, x), expected, strict=True):
        torch.testing.assert_close(a, b)


@each_script
@each_option
def test_a_second_partition_changes_nothing(name, how, options):
    once = partitioned(name, how, options)
    twice = jit.partition(once, **OPTIONS[options])
    assert text(twice.graph) == text(once.graph)
    assert jit.report(twice) == jit.report(once)


@each_script
def test_files_keep_pairs_and_report(name, how, tmp_path):
    made = partitioned(name, how)
    jit.save(made, tmp_path / "net.pt")
    back = jit.load(tmp_path / "net.pt")
    assert jit.dump(back).count("cast_hint") == jit.dump(made).count("cast_hint")
    assert jit.report(back) == jit.report(made)
    x = example(name)
    assert all(map(torch.equal, run(back, x), run(made, x)))


@each_script
def test_graphs_lint_and_copies_do(name, how):
    made = partitioned(name, how)
    torch._C._jit_pass_lint(made.graph)
    torch._C._jit_pass_lint(made.graph.copy())
