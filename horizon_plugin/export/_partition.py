"""The partition of a `torch.export` program into quantizable groups."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from horizon_plugin import _C
from horizon_plugin.export._mirror import Mirror
from horizon_plugin.export._quiet import quiet
from horizon_plugin.export._walk import layer_of, targets
from horizon_plugin.jit._partition import ConvolutionReport, _check_options

_CONVOLUTION = re.compile(r"aten::(conv(_transpose)?[123]d|_?convolution(_mode)?)")
_FUSED_LINEAR = 2


@dataclass(frozen=True)
class ProgramGroup:
    """One group, by names of nodes in the partitioned program.

    `entries` are what it reads, the results of pairs first; `nodes` its operators in the order of
    execution; `anchor` the convolution among them, None where an add or mul begins; `exits` what
    others read of it.
    """

    anchor: str | None
    nodes: tuple[str, ...]
    entries: tuple[str, ...]
    exits: tuple[str, ...]


@dataclass(frozen=True)
class ProgramPartition:
    """`program` with a pair around every group, the groups, and what became of convolutions."""

    program: ExportedProgram
    groups: tuple[ProgramGroup, ...]
    convolutions: tuple[ConvolutionReport, ...]


def partition(
    program: ExportedProgram,
    *,
    dtype_input: str = "int8",
    skip_conv_layers: Sequence[int] | None = None,
    skip_dense_layer: bool = True,
    anchors: Sequence[str] = ("conv1d", "conv2d"),
    annotate_outputs: bool = True,
) -> ProgramPartition:
    """Put a pair of `annotation::cast_hint` and `stop_fusion` around every quantizable group.

    The rules, and the code that applies them, are those of `horizon.jit.partition`; only conv-bn
    is not folded. `program` stays as it is; the result's shares its parameters.

    Args:
        program: From `torch.export.export`, of a model in eval mode, before `run_decompositions`.
        dtype_input: "int8", "uint8" or "int16", handed to every cast_hint.
        skip_conv_layers: Numbers of convolutions in the order of the graph that stay float.
        skip_dense_layer: False makes linear operators anchors as well.
        anchors: Kinds of convolutions that open a group: conv1d, conv2d, conv_transpose2d.
        annotate_outputs: False leaves returned values without a pair.

    Raises:
        TypeError: `program` or an option is of another type.
        ValueError: Unknown dtypes or anchors, numbers that no convolution has, control flow, pairs
            that do not fit.
    """
    if not isinstance(program, ExportedProgram):
        raise TypeError(
            "partition: 'program' must be what torch.export.export returns, got "
            f"{type(program).__name__}"
        )
    dtype, numbers, names = _check_options(dtype_input, skip_conv_layers, anchors)
    with quiet():
        module = copy.deepcopy(program.graph_module)
    mirror = Mirror(program, module.graph)
    options = (dtype, numbers, bool(skip_dense_layer), names, bool(annotate_outputs), False)
    _C.jit_partition(mirror.graph, options, True)
    pairs = _insert_pairs(module.graph, mirror, dtype)
    module.recompile()
    signature = copy.deepcopy(program.graph_signature)
    for source, pair in pairs.items():
        if any(user.op == "output" for user in pair.users):
            _rename_output(signature, source.name, pair.name)
    _, rows = _C.jit_read_record(mirror.graph)
    scopes = _scopes(module.graph, targets(program))
    reports = tuple(
        ConvolutionReport(number, kind, scopes[number], status) for number, kind, _, status in rows
    )
    groups = _groups(mirror, {source.name: pair.name for source, pair in pairs.items()})
    return ProgramPartition(_with_graph(program, module, signature), groups, reports)


def _is_hint(made: Any) -> bool:
    return made.kind() == "annotation::cast_hint"


def _is_stop(made: Any) -> bool:
    return made.kind() == "annotation::stop_fusion"


def _source(value: Any) -> str:
    """The name of v for [v]."""
    return value.node().inputsAt(0).node().inputsAt(0).debugName()


def _reads_pair(made: Any) -> list[str]:
    """Values whose pairs a node of the mirror reads, in lists as well."""
    found = []
    for value in made.inputs():
        if _is_stop(value.node()):
            found.append(_source(value))
        elif value.node().kind() == "prim::ListConstruct":
            found += _reads_pair(value.node())
    return found


def _insert_pairs(graph: fx.Graph, mirror: Mirror, dtype: str) -> dict[fx.Node, fx.Node]:
    """Give the copy of the program the pairs of its mirror; value -> its pair's result."""
    present = {
        stop.args[0].args[0]: stop
        for stop in graph.nodes
        if stop.target is torch.ops.annotation.stop_fusion.default
    }
    pairs: dict[fx.Node, fx.Node] = {}
    # Pairs of inputs stand behind the last placeholder, in the order of the inputs.
    last = [node for node in graph.nodes if node.op == "placeholder"][-1]
    for made in mirror.graph.nodes():
        if not _is_stop(made):
            continue
        source = mirror.sources[_source(made.output())]
        if source in present:
            pairs[source] = present[source]
            continue
        with graph.inserting_after(last if source.op == "placeholder" else source):
            hint = graph.call_function(torch.ops.annotation.cast_hint.default, (source, dtype))
        with graph.inserting_after(hint):
            stop = graph.call_function(torch.ops.annotation.stop_fusion.default, (hint,))
        if source.op == "placeholder":
            last = stop
        for node in (hint, stop):
            node.meta = dict(source.meta)
        pairs[source] = stop
    for made, user in mirror.nodes():
        if user is not None and not _is_hint(made) and not _is_stop(made):
            _read(user, _reads_pair(made), mirror, pairs)
    _read(graph.output_node(), _reads_pair(mirror.graph.return_node()), mirror, pairs)
    return pairs


def _read(node: fx.Node, names: list[str], mirror: Mirror, pairs: dict[fx.Node, fx.Node]) -> None:
    for name in names:
        source = mirror.sources[name]
        node.replace_input_with(source, pairs[source])


def _rename_output(signature: Any, old: str, new: str) -> None:
    for spec in signature.output_specs:
        if spec.arg.name == old:
            spec.arg.name = new


def _with_graph(
    program: ExportedProgram, module: fx.GraphModule, signature: Any
) -> ExportedProgram:
    with quiet():
        return ExportedProgram(
            root=module,
            graph=module.graph,
            graph_signature=signature,
            state_dict=program.state_dict,
            range_constraints=copy.deepcopy(program.range_constraints),
            module_call_graph=copy.deepcopy(program.module_call_graph),
            example_inputs=program.example_inputs,
            constants=program.constants,
            verifiers=program.verifiers,
        )


def _scopes(graph: fx.Graph, paths: dict[str, str]) -> list[str]:
    """The module of each operator that takes a number, in their order."""
    return [layer_of(node, paths) for node in graph.nodes if _takes_number(node)]


def _takes_number(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    if schema is None or schema.name != "horizon::fused":
        return schema is not None and _CONVOLUTION.fullmatch(schema.name) is not None
    place = [argument.name for argument in schema.arguments].index("base")
    return bool(node.args[place] != _FUSED_LINEAR)


def _groups(mirror: Mirror, pairs: dict[str, str]) -> tuple[ProgramGroup, ...]:
    nodes = list(mirror.nodes())
    results = {
        made.output().debugName(): pairs[_source(made.output())]
        for made, _ in nodes
        if _is_stop(made)
    }

    def name(value: str) -> str:
        return results[value] if value in results else mirror.sources[value].name

    def names(values: list[str]) -> tuple[str, ...]:
        return tuple(name(value) for value in values)

    def operators(places: list[int]) -> tuple[str, ...]:
        found = (nodes[place][1] for place in places)
        return tuple(node.name for node in found if node is not None)

    return tuple(
        ProgramGroup(
            anchor=operators([anchor])[0] if anchor >= 0 else None,
            nodes=operators(places),
            entries=names(entries),
            exits=names(exits),
        )
        for anchor, places, entries, exits, _ in _C.jit_groups(mirror.graph)
    )
