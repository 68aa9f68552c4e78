"""What cannot be partitioned is refused in one line, and stays as it was."""

from __future__ import annotations

import re

import pytest
import torch
from jit_networks import scripted, traced
from torch import Tensor, nn

from horizon_plugin import jit

X = torch.randn(1, 3, 8, 8)


def net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3))


def script() -> torch.jit.ScriptModule:
    return traced(net().eval(), X)


def graph_with(*lines: str, inputs: str = "%x : Tensor, %w : Tensor") -> torch.Graph:
    text = f"""graph({inputs}):
  %none : NoneType = prim::Constant()
  %one : int = prim::Constant[value=1]()
  %zero : int = prim::Constant[value=0]()
  %ones : int[] = prim::ListConstruct(%one, %one)
  %zeros : int[] = prim::ListConstruct(%zero, %zero)
  %int8 : str = prim::Constant[value="int8"]()
  %int16 : str = prim::Constant[value="int16"]()
"""
    return torch._C.parse_ir(text + "\n".join(f"  {line}" for line in lines) + "\n")


CONV = "aten::conv2d({}, %w, %none, %ones, %zeros, %ones, %one)"
CALLS = {
    "partition": jit.partition,
    "strip": jit.strip,
    "groups": jit.groups,
    "report": jit.report,
    "dump": jit.dump,
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    "obj", [None, 3, nn.Linear(1, 1), torch.ones(1), lambda x: x], ids=lambda o: type(o).__name__
)
def test_foreign_objects_are_refused(call, obj):
    text = f"{call}: 'obj' must be a torch Graph, ScriptModule or ScriptFunction, got "
    with pytest.raises(TypeError, match=re.escape(text + type(obj).__name__)):
        CALLS[call](obj)


class NoForward(nn.Module):
    @torch.jit.export
    def other(self, x: Tensor) -> Tensor:
        return x


def test_a_module_without_forward_is_refused():
    with pytest.raises(ValueError, match="must be a module with a forward method"):
        jit.partition(scripted(NoForward()))


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"dtype_input": "int4"}, ValueError, "'dtype_input' must be one of int8, uint8, int16"),
        ({"dtype_input": torch.int8}, TypeError, "'dtype_input' must be a string"),
        (
            {"skip_conv_layers": [2]},
            ValueError,
            "'skip_conv_layers' must be numbers from 0 to 1, one for each convolution, got 2",
        ),
        ({"skip_conv_layers": [-1]}, ValueError, "one for each convolution, got -1"),
        ({"skip_conv_layers": [2**80]}, ValueError, "'skip_conv_layers' must be"),
        ({"skip_conv_layers": 1}, TypeError, "must be a list of numbers, got 1"),
        ({"skip_conv_layers": ["a"]}, TypeError, "must be a list of numbers, got 'a' in it"),
        ({"skip_conv_layers": [True]}, TypeError, "must be a list of numbers, got True in it"),
        (
            {"anchors": ["conv3d"]},
            ValueError,
            "among conv1d, conv2d, conv_transpose2d, got 'conv3d'",
        ),
        ({"anchors": "conv2d"}, TypeError, "'anchors' must be a list of names"),
        ({"anchors": [2]}, TypeError, "'anchors' must be a list of names, got 2 in it"),
    ],
    ids=str,
)
@pytest.mark.parametrize("inplace", [False, True])
def test_options_that_make_no_sense_are_refused(options, error, text, inplace):
    graph = jit.strip(script()).inlined_graph
    before = str(graph)
    with pytest.raises(error, match=re.escape(text)):
        jit.partition(graph, inplace=inplace, **options)
    assert str(graph) == before


def test_numbers_are_refused_where_there_is_no_convolution():
    relu = graph_with("%r : Tensor = aten::relu(%x)", "return (%r)")
    with pytest.raises(ValueError, match="must be empty, as there are no convolutions, got 0"):
        jit.partition(relu, skip_conv_layers=[0])


def test_a_module_in_training_mode_is_refused():
    module = scripted(net().train())
    with pytest.raises(ValueError, match=r"must be in eval mode, got .*; call eval\(\) first"):
        jit.partition(module)


@pytest.mark.parametrize("how", [traced, lambda m, x: scripted(m)], ids=["trace", "script"])
@pytest.mark.parametrize("part", [nn.BatchNorm2d(3), nn.Dropout(0.5)], ids=lambda m: str(m)[:7])
def test_a_layer_in_training_mode_is_named(how, part):
    root = nn.Sequential(part)
    root.training = False
    part.train()
    with pytest.raises(ValueError, match=r"in training mode.*; call eval\(\) before tracing"):
        jit.partition(how(root, X))


@pytest.mark.parametrize("inplace", [False, True])
def test_an_operator_that_is_not_registered_is_named(inplace):
    graph = graph_with("%y : Tensor = vendor::op(%x)", "return (%y)")
    before = str(graph)
    with pytest.raises(ValueError, match="vendor::op; import the library that registers 'vendor'"):
        jit.partition(graph, inplace=inplace)
    assert str(graph) == before


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (
            (
                "%h : Tensor = annotation::cast_hint(%x, %int16)",
                "%s : Tensor = annotation::stop_fusion(%h)",
            ),
            "a pair of %x with dtype 'int16'",
        ),
        (("%s : Tensor = annotation::cast_hint(%x, %int8)",), "a cast_hint of %x without its one"),
        (
            ("%s : Tensor = annotation::stop_fusion(%x)",),
            "a stop_fusion of %x without its cast_hint",
        ),
        (
            (
                "%h : Tensor = annotation::cast_hint(%x, %int8)",
                "%t : Tensor = annotation::stop_fusion(%h)",
                "%g : Tensor = annotation::cast_hint(%x, %int8)",
                "%s : Tensor = annotation::stop_fusion(%g)",
                "%u : Tensor = aten::relu(%t)",
            ),
            "a second pair of %x",
        ),
        (
            (
                "%h : Tensor = annotation::cast_hint(%x, %int8)",
                "%t : Tensor = annotation::stop_fusion(%h)",
                "%g : Tensor = annotation::cast_hint(%t, %int8)",
                "%s : Tensor = annotation::stop_fusion(%g)",
            ),
            "a pair of the pair %",
        ),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
@pytest.mark.parametrize("inplace", [False, True])
def test_annotations_that_do_not_fit_are_refused_until_stripped(lines, text, inplace):
    graph = graph_with(*lines, "%c : Tensor = " + CONV.format("%s"), "return (%c)")
    before = str(graph)
    with pytest.raises(ValueError, match=re.escape(text) + r".*; strip\(\) it first"):
        jit.partition(graph, inplace=inplace)
    assert str(graph) == before
    assert jit.dump(jit.partition(jit.strip(graph))).count("cast_hint") == 2


def test_a_partition_with_another_dtype_asks_to_strip_first():
    made = jit.partition(script())
    with pytest.raises(ValueError, match=r"with dtype 'int8'; strip\(\) it first"):
        jit.partition(made, dtype_input="uint8")
    again = jit.partition(jit.strip(made), dtype_input="uint8")
    assert 'dtype="uint8"' in jit.dump(again)


def test_a_module_that_is_not_frozen_is_not_partitioned_in_place():
    module = script()
    with pytest.raises(ValueError, match="'inplace' must be False for a module that is not frozen"):
        jit.partition(module, inplace=True)
    assert jit.partition(module, inplace=True, prepare=False) is module


@pytest.mark.parametrize("call", [jit.report, jit.groups])
@pytest.mark.parametrize("obj", [script(), script().inlined_graph], ids=["module", "graph"])
def test_what_was_not_partitioned_has_no_report(call, obj):
    with pytest.raises(ValueError, match=r"must be partitioned.*call horizon\.jit\.partition"):
        call(obj)
    with pytest.raises(ValueError, match="must be partitioned"):
        call(jit.strip(jit.partition(obj)))


def test_an_unknown_style_is_refused():
    with pytest.raises(ValueError, match="'style' must be 'relay' or 'torchscript', got 'dot'"):
        jit.dump(script(), style="dot")
