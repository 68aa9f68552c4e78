"""Symbolic traces in which everything that fuses or quantizes stays a module."""

from __future__ import annotations

import operator
import os
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from horizon_plugin._traced import TracedModel
from horizon_plugin.nn._layer import Layer, adopt_hooks
from horizon_plugin.nn._pending import FusionError
from horizon_plugin.quantization._call_record import functional_methods
from horizon_plugin.quantization._module_tree import GROUP
from horizon_plugin.quantization.stubs import DeQuantStub, QuantStub

_LIBRARIES = tuple(
    os.path.dirname(os.path.abspath(path)) + os.sep for path in (torch.__file__, __file__)
)
_DROPOUTS = (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout)


class _WritingProxy(fx.Proxy):
    """A proxy that keeps augmented assignments in place; torch's makes ``y += x`` a new value,
    which changes models that use ``y`` by another name as well."""


def _augmented(function: Callable[..., Any]) -> Callable[..., Any]:
    def assign(self: fx.Proxy, other: Any) -> Any:
        return self.tracer.create_proxy("call_function", function, (self, other), {})

    return assign


for _function in (
    operator.iadd,
    operator.isub,
    operator.imul,
    operator.itruediv,
    operator.ifloordiv,
    operator.imod,
    operator.ipow,
    operator.iand,
    operator.ior,
    operator.ixor,
):
    setattr(_WritingProxy, f"__{_function.__name__}__", _augmented(_function))


class FusionTracer(fx.Tracer):
    """A tracer with stubs, FloatFunctionals and fused, prepared and converted modules as leaves.

    A use of a FloatFunctional is two nodes: ``get_attr`` of the module and ``call_method``. The
    class is public in this module because a pickled GraphModule is traced again on loading.

    Args:
        leaves: further classes that are not looked into.
    """

    def __init__(self, *args: Any, leaves: tuple[type, ...] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._leaves = leaves

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Whether calls of `m` are one node."""
        return (
            isinstance(m, (QuantStub, DeQuantStub, Layer))
            or GROUP in m.__dict__
            or type(m) in self._leaves
            or super().is_leaf_module(m, module_qualified_name)
        )

    def proxy(self, node: fx.Node) -> fx.Proxy:
        """What stands for the value of `node` while the model runs."""
        return _WritingProxy(node, self)

    def trace(self, root: Any, concrete_args: dict[str, Any] | None = None) -> fx.Graph:
        """The graph of `root`'s forward."""
        if not isinstance(root, nn.Module):
            return super().trace(root, concrete_args)
        with self._watching_functionals(root):
            return super().trace(root, concrete_args)

    @contextmanager
    def _watching_functionals(self, root: nn.Module) -> Iterator[None]:
        watched: list[tuple[dict[str, Any], str]] = []
        try:
            for module in root.modules():
                if not is_functional(module):
                    continue
                for name in functional_methods(type(module)):
                    if name not in module.__dict__:
                        module.__dict__[name] = self._node_maker(module, name)
                        watched.append((module.__dict__, name))
            yield
        finally:
            for attributes, name in watched:
                attributes.pop(name, None)

    def _node_maker(self, module: nn.Module, name: str) -> Callable[..., Any]:
        method = getattr(module, name)

        def make(*args: Any, **kwargs: Any) -> Any:
            if not any(isinstance(a, fx.Proxy) for a in fx_leaves((args, kwargs))):
                return method(*args, **kwargs)
            holder = self.create_proxy("get_attr", self.path_of_module(module), (), {})
            return self.create_proxy("call_method", name, (holder, *args), kwargs)

        return make


def is_functional(module: nn.Module) -> bool:
    """Whether a module is used through methods, such as `add`, and not called."""
    return callable(getattr(type(module), "add_relu", None))


def fx_leaves(value: Any) -> Iterator[Any]:
    """What nested tuples, lists and dicts hold."""
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (tuple, list)):
        yield value
        return
    for item in value:
        yield from fx_leaves(item)


def _place_of(error: BaseException) -> str:
    """The user's line that an error came from."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(_LIBRARIES) and os.path.isabs(frame.filename)
    ]
    if not frames:
        return ""
    frame = frames[-1]
    return f" at {frame.filename}:{frame.lineno} ({frame.line})"


def trace(model: nn.Module, leaves: tuple[type, ...]) -> fx.GraphModule:
    """Trace `model`; the modules of the result are the model's own.

    Raises:
        FusionError: the model's forward cannot be traced; names the line.
    """
    tracer = FusionTracer(leaves=leaves)
    try:
        graph = tracer.trace(model)
    except Exception as error:
        text = str(error).strip().split("\n")[0]
        raise FusionError(
            f"fuse_fx: 'model' must be traceable symbolically, got {type(error).__name__}"
            f"{_place_of(error)}: {text}. Use fuse(model, example_inputs), which runs the model "
            "instead"
        ) from error
    for node in graph.nodes:
        if isinstance(node.type, str):  # a postponed annotation, which does not pickle
            node.type = None
        if node.op == "call_function" and node.target in _DROPOUTS:
            warnings.warn(
                f"fuse_fx: {owner_of(node) or 'the model'}: F.{node.target.__name__} keeps the "
                f"mode of the trace ({'train' if model.training else 'eval'}): use an nn.Dropout "
                "module",
                UserWarning,
                stacklevel=4,
            )
    traced = TracedModel(model, graph, type(model).__name__)
    for path, container in traced.named_modules():
        source = model.get_submodule(path)
        if source is not container:
            container.training = source.training
            if "qconfig" in source.__dict__:
                container.__dict__["qconfig"] = source.__dict__["qconfig"]
    adopt_hooks(traced, model)
    return traced


def owner_of(node: fx.Node) -> str:
    """The path of the module whose forward made `node`; empty for the model itself."""
    paths = [entry[0] for entry in (node.meta.get("nn_module_stack") or {}).values()]
    if node.op == "call_module" and paths and paths[-1] == node.target:
        paths.pop()
    return paths[-1] if paths else ""
