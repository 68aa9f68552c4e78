"""What a model holds before it is run or changed, to be put back afterwards."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter


def _attributes(value: Any) -> dict[str, Any] | None:
    """The dict of an object that is looked into: modules and plain records, nothing else.

    Other objects (a trainer, a logger, a data set) may be large, and are not the model's own.
    """
    if isinstance(value, (nn.Module, SimpleNamespace)) or (
        dataclasses.is_dataclass(value) and not isinstance(value, type)
    ):
        return getattr(value, "__dict__", None)
    return None


def _snapshot(holder: Any) -> Any:
    if isinstance(holder, dict):
        return dict(holder)
    return set(holder) if isinstance(holder, set) else list(holder)


def _is_same(mine: Any, saved: Any) -> bool:
    if len(mine) != len(saved):
        return False
    if isinstance(mine, dict):
        return all(k is j and mine[k] is saved[j] for k, j in zip(mine, saved, strict=True))
    if isinstance(mine, set):
        return {id(item) for item in mine} == {id(item) for item in saved}
    return all(a is b for a, b in zip(mine, saved, strict=True))


def clone(tensor: Tensor, memo: dict[int, Tensor]) -> Tensor:
    """A copy that no graph knows, one for each tensor."""
    copied = memo.get(id(tensor))
    if copied is None:
        copied = tensor.detach().clone().requires_grad_(tensor.requires_grad)
        memo[id(tensor)] = copied
    return copied


class _Values:
    """A tensor whose place cannot be written, such as a parameter: its memory and values.

    Its version is put back with them, so that graphs that saved the tensor stay usable.
    """

    def __init__(self, tensor: Tensor) -> None:
        self._tensor, self._data = tensor, tensor.data
        self._requires_grad = tensor.requires_grad
        self._values = tensor.detach().clone()
        self._version = None if tensor.is_inference() else _unsafe_preserve_version_counter(tensor)

    def restore(self) -> None:
        """Put memory, values, version and flag back."""
        tensor, data = self._tensor, self._data
        if tensor.requires_grad != self._requires_grad:
            tensor.requires_grad_(self._requires_grad)
        if data.is_meta or data.layout != torch.strided:
            return
        if tensor.data_ptr() != data.data_ptr() or tensor.shape != data.shape:
            tensor.data = data
        # A NaN is unequal to itself, and is written once more.
        if not torch.equal(data, self._values):
            data.copy_(self._values)
        if self._version is not None:
            self._version.__exit__()


class ModelState:
    """The attributes of every module of a model and what they hold, nested.

    Modules outside the tree, in a list say, are included; so are records such as dataclasses.
    Restoring puts back the same objects. Tensors keep their values only if copies were lent.
    """

    def __init__(self, model: nn.Module) -> None:
        self._holders: list[tuple[Any, Any]] = []
        self._unwritable: list[Tensor] = []
        self._values: list[_Values] = []
        seen: set[int] = set()
        waiting: list[Any] = [model]
        while waiting:
            value = waiting.pop()
            if id(value) not in seen:
                seen.add(id(value))
                waiting += self._enter(value)

    def _enter(self, value: Any) -> Iterator[Any]:
        if isinstance(value, torch.jit.ScriptModule):
            self._unwritable += [*value.parameters(), *value.buffers()]
            return
        holder: Any = _attributes(value)
        if holder is None and isinstance(value, (dict, list, deque, set)):
            holder = value
        if holder is not None:
            self._holders.append((holder, _snapshot(holder)))
        elif isinstance(value, (tuple, frozenset)):
            holder = value
        if holder is None:
            return
        for item in holder.values() if isinstance(holder, dict) else holder:
            if isinstance(item, Tensor):
                if isinstance(item, nn.Parameter) or isinstance(holder, (tuple, set, frozenset)):
                    self._unwritable.append(item)
            else:
                yield item

    def lend_copies(self) -> None:
        """Put copies in the places of buffers and other tensors; a run may write into those."""
        memo: dict[int, Tensor] = {}
        self._values = [_Values(tensor) for tensor in {id(t): t for t in self._unwritable}.values()]
        for holder, saved in self._holders:
            if isinstance(holder, set):
                continue
            for key, item in saved.items() if isinstance(saved, dict) else enumerate(saved):
                if isinstance(item, Tensor) and not isinstance(item, nn.Parameter):
                    holder[key] = clone(item, memo)

    def restore(self) -> None:
        """Put everything back as it was."""
        for holder, saved in self._holders:
            if _is_same(holder, saved):
                continue
            holder.clear()
            if isinstance(holder, (dict, set)):
                holder.update(saved)
            else:
                holder.extend(saved)
        with torch.no_grad():
            for values in self._values:
                values.restore()
        self._values = []
