"""From the trace of a converted model to the nodes of an ONNX graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from horizon_plugin.export import _aten_ops, _groups, _lookup, _single_ops
from horizon_plugin.export._step import Step, Unsupported, shape_of
from horizon_plugin.export._writer import Value, Writer

_HORIZON: dict[str, Callable[..., Any]] = {
    **_single_ops.EMITTERS,
    "horizon::quantized_conv": _groups.quantized_conv,
    "horizon::quantized_conv_packed": _groups.quantized_conv_packed,
}


def targets(program: ExportedProgram) -> dict[str, str]:
    """Placeholder -> the path of the parameter or buffer that it stands for."""
    signature = program.graph_signature
    return {**signature.inputs_to_parameters, **signature.inputs_to_buffers}


def layer_of(node: fx.Node, paths: dict[str, str]) -> str:
    """The path of the module that called an operator, or "the model"; `paths` are `targets`.

    A group with an add is called by a method, which traces do not see; its weight tells.
    """
    schema = getattr(node.target, "_schema", None)
    if schema is not None and schema.name.startswith("horizon::"):
        for argument, given in zip(schema.arguments, node.args, strict=False):
            path = paths.get(given.name) if isinstance(given, fx.Node) else None
            if argument.name in ("packed", "weight") and path is not None:
                return path.rpartition(".")[0] or "the model"
    stack = node.meta.get("nn_module_stack") or {}
    path = next(reversed(stack.values()))[0] if stack else ""
    return path or "the model"


def _emitter(target: Any) -> Callable[..., Any] | None:
    name, overload = target._schema.name, target._overloadname or "default"
    return _HORIZON.get(name) or _aten_ops.EMITTERS.get(f"{name}.{overload}")


def _supported() -> str:
    names = {name.split("::")[1].split(".")[0] for name in _aten_ops.EMITTERS}
    return ", ".join(sorted(name for name in names if not name.startswith("_")))


class Walk:
    """Computes what is constant, and hands every other operator to its emitter."""

    def __init__(self, program: ExportedProgram, writer: Writer) -> None:
        self.writer = writer
        self._program = program
        self._paths = targets(program)
        self._values: dict[fx.Node, Any] = {}
        self.inputs: list[Value] = []

    def run(self) -> list[Any]:
        """The model's results: values, constants, numbers or None, in order."""
        self._placeholders()
        results: list[Any] = []
        for node in self._program.graph.nodes:
            if node.op == "call_function":
                self._values[node] = self._call(node)
            elif node.op == "output":
                results = [self._read(argument) for argument in node.args[0]]
        return results

    def _placeholders(self) -> None:
        program = self._program
        nodes = [node for node in program.graph.nodes if node.op == "placeholder"]
        specs = program.graph_signature.input_specs
        for node, spec in zip(nodes, specs, strict=True):
            if spec.kind == InputKind.USER_INPUT:
                self._values[node] = self._user_input(node)
            elif spec.target in program.state_dict:
                self._values[node] = program.state_dict[spec.target].detach()
            else:
                self._values[node] = program.constants[spec.target]

    def _user_input(self, node: fx.Node) -> Any:
        sample = node.meta["val"]
        if not isinstance(sample, Tensor):
            return sample
        value = Value(self.writer.name(node.name), shape_of(sample), sample.dtype)
        self.inputs.append(value)
        return value

    def _read(self, argument: Any) -> Any:
        return fx.map_arg(argument, lambda node: self._values[node])

    def _call(self, node: fx.Node) -> Any:
        sample = node.meta.get("val")
        if not isinstance(sample, (Tensor, tuple, list)):
            return sample  # sizes and the arithmetic on them
        target = node.target
        if not isinstance(target, torch._ops.OpOverload):  # operator.getitem
            return target(*self._read(node.args))  # type: ignore[operator]
        args = self._arguments(node)
        if not _any_value(args) and not any(_symbolic(arg) for arg in args):
            return self._constant(node, args)
        emit = _emitter(target)
        layer = layer_of(node, self._paths)
        if emit is None:
            raise NotImplementedError(
                f"to_onnx: {layer}: {target} has no form in ONNX here; those that have one are "
                f"horizon's integer operators and {_supported()}: write the layer with these, or "
                "leave it out of the exported model"
            )
        hint = node.name if layer == "the model" else f"{layer}/{node.name}"
        step = Step(self.writer, hint, layer, sample)
        function = None
        if target._schema.name == "horizon::quantized_lookup":
            function = _lookup.function_of(node)
        try:
            if function is not None:
                return self._function(step, node, function)
            return emit(step, *args)
        except (Unsupported, KeyError) as error:
            raise NotImplementedError(
                f"to_onnx: {layer}: {target} has no form in ONNX for {error}"
            ) from None

    def _function(self, step: Step, lookup: fx.Node, function: fx.Node) -> Value:
        q, table = lookup.args[:2]
        real: Any = function.args[0]
        grid, output = self._read((real.args[1:3], table.args[1:3]))  # type: ignore[union-attr]
        arguments = self._arguments(function)[1:]
        return _lookup.write(step, self._read(q), function, arguments, grid, output)

    def _constant(self, node: fx.Node, args: list[Any]) -> Any:
        schema = node.target._schema  # type: ignore[union-attr]
        positional = [
            a for a, arg in zip(args, schema.arguments, strict=True) if not arg.kwarg_only
        ]
        named = {
            arg.name: a for a, arg in zip(args, schema.arguments, strict=True) if arg.kwarg_only
        }
        with torch.no_grad():
            return node.target(*positional, **named)  # type: ignore[operator]

    def _arguments(self, node: fx.Node) -> list[Any]:
        """All arguments in the schema's order, defaults included."""
        schema = node.target._schema  # type: ignore[union-attr]
        args = []
        for place, argument in enumerate(schema.arguments):
            if place < len(node.args):
                given = node.args[place]
            elif argument.name in node.kwargs:
                given = node.kwargs[argument.name]
            else:
                given = argument.default_value
            args.append(self._read(given))
        return args


def _any_value(argument: Any) -> bool:
    if isinstance(argument, (tuple, list)):
        return any(_any_value(item) for item in argument)
    return isinstance(argument, Value)


def _symbolic(argument: Any) -> bool:
    if isinstance(argument, (tuple, list)):
        return any(_symbolic(item) for item in argument)
    return isinstance(argument, torch.SymInt)
