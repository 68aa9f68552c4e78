"""A TorchScript graph that mirrors a `torch.export` program, for the passes in C++.

It never runs: it has the program's operators in their order, with its parameters as constants, so
that one set of rules serves both kinds of graphs.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind


def parameters(program: ExportedProgram) -> dict[str, Tensor | Any]:
    """Placeholder -> the parameter, buffer or constant that it stands for."""
    found = {}
    for spec in program.graph_signature.input_specs:
        if spec.kind == InputKind.USER_INPUT or spec.target is None:
            continue
        source = program.state_dict if spec.target in program.state_dict else program.constants
        found[spec.arg.name] = source[spec.target]
    return found


class Mirror:
    """`graph`, and which of `nodes`, a copy of the program's, its values and nodes came from."""

    def __init__(self, program: ExportedProgram, nodes: fx.Graph) -> None:
        self.graph: Any = torch._C.Graph()
        #: Name of a value in `graph` -> the program's node.
        self.sources: dict[str, fx.Node] = {}
        self._values: dict[fx.Node, Any] = {}
        self._made: list[tuple[Any, fx.Node]] = []
        self._order = {node: place for place, node in enumerate(nodes.nodes)}
        constants = parameters(program)
        for node in nodes.nodes:
            if node.op == "placeholder":
                self._placeholder(node, constants)
            elif node.op == "call_function":
                self._call(node)
            elif node.op == "output":
                for argument in node.args[0]:
                    self.graph.registerOutput(self._constant_or_value(argument))

    def _placeholder(self, node: fx.Node, constants: dict[str, Any]) -> None:
        if node.name in constants:
            constant = constants[node.name]
            if isinstance(constant, Tensor):
                constant = constant.detach()
            self._values[node] = self.graph.insertConstant(constant)
            return
        sample = node.meta.get("val")
        if isinstance(sample, Tensor):
            self._adopt(node, self.graph.addInput(node.name), sample)
        else:  # a number
            self._values[node] = self.graph.insertConstant(sample)

    def _adopt(self, node: fx.Node, value: Any, sample: Tensor) -> None:
        value.setType(torch._C.TensorType.get())
        if not sample.is_floating_point():  # the pass leaves integers alone
            value.inferTypeFrom(torch.empty((0,) * sample.dim(), dtype=sample.dtype))
        value.setDebugName(node.name)
        self._values[node] = value
        self.sources[value.debugName()] = node

    def _call(self, node: fx.Node) -> None:
        target: Any = node.target
        sample = node.meta.get("val")
        if target is operator.getitem:
            self._item(node)
        elif isinstance(target, torch._ops.OpOverload):
            self._operator(node, target, sample)
        elif isinstance(sample, Tensor) or isinstance(target, torch._ops.HigherOrderOperator):
            raise ValueError(
                "partition: 'program' must be without control flow and functional wrappers, got "
                f"{target}; pass what torch.export.export returns, before run_decompositions"
            )
        else:  # arithmetic on sizes, which reads no elements
            self._values[node] = self.graph.insertConstant(1)

    def _operator(self, node: fx.Node, target: Any, sample: Any) -> None:
        schema = target._schema
        operands = []
        for place, argument in enumerate(schema.arguments):
            given = argument.default_value
            if place < len(node.args):
                given = node.args[place]
            elif argument.name in node.kwargs:
                given = node.kwargs[argument.name]
            operands.append(self._operand(given, str(argument.type)))
        name = schema.name
        if self._replaceable(node, schema):
            name = name.removesuffix("_")
        made = self.graph.create(name, operands, len(schema.returns))
        self.graph.appendNode(made)
        outputs = list(made.outputs())
        self._made += [(output, node) for output in outputs]
        if isinstance(sample, Tensor):
            self._adopt(node, outputs[0], sample)
        elif len(outputs) == 1:
            tensors = isinstance(sample, (list, tuple))
            outputs[0].setType(torch._C.ListType.ofTensors() if tensors else torch._C.IntType.get())
            outputs[0].setDebugName(node.name)
            self._values[node] = outputs[0]
            self.sources[outputs[0].debugName()] = node
        else:
            for output in outputs:
                output.setType(torch._C.TensorType.get())
            self._values[node] = outputs

    def _replaceable(self, node: fx.Node, schema: Any) -> bool:
        """Whether nobody sees that an operator writes in place: its operand has no later reader."""
        written = node.args[0] if node.args else None
        if not schema.name.endswith("_") or not isinstance(written, fx.Node):
            return False
        last = all(self._order[user] <= self._order[node] for user in written.users)
        return written.op == "call_function" and last

    def _item(self, node: fx.Node) -> None:
        source, index = node.args
        value = self._values[source]  # type: ignore[index]
        if isinstance(value, list):
            self._values[node] = value[index]  # type: ignore[index]
            value[index].setDebugName(node.name)  # type: ignore[index]
            self.sources[value[index].debugName()] = node  # type: ignore[index]
            return
        made = self.graph.create("aten::__getitem__", [value, self.graph.insertConstant(index)], 1)
        self.graph.appendNode(made)
        self._made.append((made.output(), node))
        self._adopt(node, made.output(), node.meta["val"])

    def _constant_or_value(self, argument: Any) -> Any:
        if isinstance(argument, fx.Node):
            return self._values[argument]
        return self.graph.insertConstant(argument)

    def _operand(self, given: Any, kind: str) -> Any:
        if isinstance(given, fx.Node):
            return self._values[given]
        if isinstance(given, (list, tuple)):
            return self._list(list(given), kind)
        if isinstance(given, int) and not isinstance(given, bool) and "float" in kind:
            given = float(given)
        return self.graph.insertConstant(given)

    def _list(self, items: list[Any], kind: str) -> Any:
        made = self.graph.create("prim::ListConstruct", [self._operand(i, kind) for i in items], 1)
        self.graph.appendNode(made)
        made.output().setType(_list_type(kind))
        return made.output()

    def nodes(self) -> Iterator[tuple[Any, fx.Node | None]]:
        """The graph's nodes, and what each came from: None for constants, lists and pairs."""
        owners = {output.debugName(): node for output, node in self._made}
        for made in self.graph.nodes():
            names = [output.debugName() for output in made.outputs()]
            yield made, owners.get(names[0]) if names else None


def _list_type(kind: str) -> Any:
    if "Optional[Tensor]" in kind and "List" in kind:
        return torch._C.ListType(torch._C.OptionalType.ofTensor())
    for name, made in (
        ("Tensor", torch._C.ListType.ofTensors),
        ("float", torch._C.ListType.ofFloats),
        ("bool", torch._C.ListType.ofBools),
    ):
        if name in kind:
            return made()
    return torch._C.ListType.ofInts()
