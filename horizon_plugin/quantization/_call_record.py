"""Records one run of a model: which module or function used which tensor, in order.

The record is what `csrc/fuse/record.h` describes; the C++ search and checks of `fuse` read it.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from horizon_plugin.nn._layer import Layer
from horizon_plugin.nn._pending import version_of
from horizon_plugin.quantization._module_tree import GROUP, ModuleTree

Record = tuple[list[tuple[Any, ...]], list[tuple[int, int]], list[int], list[int]]

#: Reads that a fused module's result answers as the base's own result does.
METADATA = frozenset(
    (
        "shape size dim ndim ndimension numel nelement dtype device layout is_cuda is_contiguous "
        "is_floating_point is_complex is_quantized is_sparse is_meta requires_grad is_leaf "
        "element_size itemsize nbytes __len__ get_device"
    ).split()
)
_NAMES = {
    "add": "+",
    "__add__": "+",
    "__radd__": "+",
    "add_": "+=",
    "__iadd__": "+=",
}


def op_name(func: Any) -> str:
    """What a function is called in messages: "+", "relu", "shape"."""
    name = getattr(func, "__name__", None) or str(func)
    if name in ("__get__", "__set__"):
        name = getattr(getattr(func, "__self__", None), "__name__", name)
    return _NAMES.get(name, name)


def tensors_in(value: Any, depth: int = 0) -> Iterator[Tensor]:
    """Every tensor in nested tuples, lists, dicts and objects with attributes, in order."""
    if isinstance(value, Tensor):
        yield value
        return
    if depth > 8 or isinstance(value, (str, bytes, int, float, nn.Module, type)):
        return
    if isinstance(value, (tuple, list, set, frozenset)):
        items: Any = value
    elif isinstance(value, dict):
        items = value.values()
    elif dataclasses.is_dataclass(value) or hasattr(value, "__dict__"):
        items = vars(value).values() if hasattr(value, "__dict__") else dataclasses.astuple(value)
    else:
        return
    for item in list(items):
        yield from tensors_in(item, depth + 1)


def _arguments(value: Any) -> Iterator[Tensor]:
    # The plain containers that functions take; `tensors_in` is slower.
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _arguments(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _arguments(item)


def functional_methods(cls: type) -> list[str]:
    """The methods by which a FloatFunctional, ours or torch's, is used instead of a call."""
    return [
        name
        for name in dir(cls)
        if not name.startswith("_")
        and not hasattr(nn.Module, name)
        and callable(getattr(cls, name))
        and name != "from_float"
    ]


class _Operators(TorchDispatchMode):
    """Shows a recorder what reaches the dispatcher past Python, such as scripted functions."""

    def __init__(self, recorder: CallRecorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        """Run `func`, and record it unless it is a part of what is recorded already."""
        name = func.overloadpacket.__name__
        return self._recorder.run_operator(func, args, kwargs or {}, name)


class CallRecorder(TorchFunctionMode):
    """Records what a model does while the context is entered.

    Modules are watched through attributes of the instances, which are removed on exit: a method
    of an instance is found before the class's, so calls of `forward` itself are seen as well, and
    no hook of the user's is touched.

    Args:
        tree: the model.
        members: numbers of nodes that are to be seen as a whole, besides those of known classes.
    """

    def __init__(self, tree: ModuleTree, members: set[int]) -> None:
        super().__init__()
        self._tree = tree
        self._calls: list[tuple[Any, ...]] = []
        self._values: list[tuple[int, int]] = []
        self._numbers: dict[tuple[int, int], int] = {}
        self._storages: dict[int, int] = {}
        self._alive: dict[int, Tensor] = {}
        self._owners = [0]
        self._depth = 0
        self._thread = threading.get_ident()
        self._undo: list[Callable[[], None]] = []
        self._nodes: dict[int, list[int]] = {}
        for number, module in enumerate(tree.modules):
            self._nodes.setdefault(id(module), []).append(number)
        self._members = members
        self._operators = _Operators(self)

    def record(self, result: Any) -> Record:
        """The record of a run that returned `result`."""
        with torch._C.DisableTorchFunction():
            results = [self._number(t) for t in tensors_in(result)]
            kept = []
            for module in self._tree.modules:
                for name, value in module.__dict__.items():
                    if name in ("_parameters", "_modules"):
                        continue
                    kept += [
                        self._number(t)
                        for t in _arguments(value)
                        if id(t) in self._alive and not isinstance(t, nn.Parameter)
                    ]
        return self._calls, self._values, results, kept

    # --- Watching modules -----------------------------------------------------------------------

    def __enter__(self) -> CallRecorder:
        try:
            for module in {id(m): m for m in self._tree.modules}.values():
                self._watch(module)
        except BaseException:
            self._unwatch()
            raise
        self._operators.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)
        self._operators.__exit__(*exc)
        self._unwatch()

    def _unwatch(self) -> None:
        while self._undo:
            self._undo.pop()()

    def _watch(self, module: nn.Module) -> None:
        first = self._nodes[id(module)][0]
        kind, derived = self._tree.nodes[first][1:3]
        if kind == "FloatFunctional" or hasattr(module, "add_relu"):
            for name in functional_methods(type(module)):
                self._replace(module, name, self._as_member(module, name))
            return
        is_member = (
            kind != "Other"
            or (derived != "Other" and not module._modules)
            or GROUP in module.__dict__
            or isinstance(module, (Layer, torch.jit.ScriptModule))
            or not self._members.isdisjoint(self._nodes[id(module)])
        )
        watch = self._as_member(module, "forward") if is_member else self._as_owner(module)
        self._replace(module, "forward", watch)

    def _replace(self, module: nn.Module, name: str, function: Callable[..., Any]) -> None:
        attributes = module.__dict__
        if name in attributes:
            old = attributes[name]
            self._undo.append(lambda: attributes.__setitem__(name, old))
        else:
            self._undo.append(lambda: attributes.pop(name, None))
        attributes[name] = function

    def _as_owner(self, module: nn.Module) -> Callable[..., Any]:
        forward = module.forward
        node = self._nodes[id(module)][0]

        def watched(*args: Any, **kwargs: Any) -> Any:
            if self._is_off():
                return forward(*args, **kwargs)
            self._owners.append(node)
            try:
                return forward(*args, **kwargs)
            finally:
                self._owners.pop()

        return watched

    def _as_member(self, module: nn.Module, name: str) -> Callable[..., Any]:
        method = getattr(module, name)
        op = "" if name == "forward" else name

        def watched(*args: Any, **kwargs: Any) -> Any:
            if self._is_off():
                return method(*args, **kwargs)
            return self._run(method, args, kwargs, self._node_of(module), op, False)

        return watched

    def _node_of(self, module: nn.Module) -> int:
        # One activation in several places is a node for each: the one beside the caller.
        nodes = self._nodes[id(module)]
        if len(nodes) > 1:
            children = self._tree.children_of(self._owners[-1])
            for node in nodes:
                if node in children:
                    return node
        return nodes[0]

    # --- Recording ------------------------------------------------------------------------------

    def _is_off(self) -> bool:
        return self._depth > 0 or threading.get_ident() != self._thread

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        """Run and record `func`."""
        return self.run_operator(func, args, kwargs or {}, op_name(func))

    def run_operator(self, func: Any, args: Any, kwargs: Any, name: str) -> Any:
        """Run `func`, and record it as the function `name` unless a recorded call is running."""
        if self._is_off():
            return func(*args, **kwargs)
        return self._run(func, args, kwargs, -1, name, name in METADATA)

    def _run(
        self, function: Any, args: Any, kwargs: Any, node: int, op: str, metadata: bool
    ) -> Any:
        with torch._C.DisableTorchFunction():
            tensors = list(_arguments(args)) + list(_arguments(kwargs))
            inputs = [self._number(t) for t in tensors]
            versions = [version_of(t) for t in tensors]
        self._depth += 1
        try:
            result = function(*args, **kwargs)
        finally:
            self._depth -= 1
        with torch._C.DisableTorchFunction():
            changed = [
                self._values[number][0]
                for tensor, number, version in zip(tensors, inputs, versions, strict=True)
                if version_of(tensor) != version
            ]
            outputs = [] if metadata else [self._number(t) for t in _arguments(result)]
        if inputs or outputs:
            self._calls.append((node, op, self._owners[-1], inputs, outputs, changed, metadata))
        return result

    def _number(self, tensor: Tensor) -> int:
        # Tensors are kept alive, so that no id stands for two of them.
        key = (id(tensor), version_of(tensor))
        number = self._numbers.get(key)
        if number is None:
            self._alive[id(tensor)] = tensor
            number = self._numbers[key] = len(self._values)
            self._values.append((self._storage(tensor), tensor.dim()))
        return number

    def _storage(self, tensor: Tensor) -> int:
        try:
            address = tensor.untyped_storage()._cdata
        except (RuntimeError, NotImplementedError):
            address = -id(tensor)
        return self._storages.setdefault(address, len(self._storages))
