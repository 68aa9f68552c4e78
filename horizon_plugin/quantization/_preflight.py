"""Runs a model on example inputs and leaves no trace of it."""

from __future__ import annotations

import dataclasses
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from horizon_plugin.nn._pending import FusionError
from horizon_plugin.quantization._call_record import CallRecorder, Record, tensors_in
from horizon_plugin.quantization._model_state import ModelState, clone
from horizon_plugin.quantization._module_tree import ModuleTree

# Largest difference between the outputs before and after a fusion, relative to the output's norm:
# many times what rounding a folded batch norm costs a deep network.
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 3e-2, torch.bfloat16: 2e-1}


def check_example_inputs(call: str, example_inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of one call of the model: from a tuple or list, or a dict of keywords."""
    if isinstance(example_inputs, dict):
        return (), example_inputs
    if not isinstance(example_inputs, (tuple, list)):
        raise TypeError(
            f"{call}: 'example_inputs' must be a tuple of the model's arguments (or a dict of "
            f"keyword arguments), got {type(example_inputs).__name__}: for one tensor, pass (x,)"
        )
    return tuple(example_inputs), {}


def _clone_nested(value: Any, memo: dict[int, Tensor]) -> Any:
    """A copy in which no tensor is the caller's, so that a model may write into its input."""
    if isinstance(value, Tensor):
        return clone(value, memo)
    if isinstance(value, tuple):
        items = [_clone_nested(item, memo) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, list):
        return [_clone_nested(item, memo) for item in value]
    if isinstance(value, dict):
        copied = value.copy()
        copied.update((key, _clone_nested(item, memo)) for key, item in value.items())
        return copied
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changes = {
            field.name: _clone_nested(getattr(value, field.name), memo)
            for field in dataclasses.fields(value)
            if field.init
        }
        return dataclasses.replace(value, **changes)
    return value


def _random_state() -> Callable[[], None]:
    """A function that puts every random generator back to where it is now."""
    python, cpu = random.getstate(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    numpy: Any = sys.modules.get("numpy")
    numpy_state = None if numpy is None else numpy.random.get_state()

    def restore() -> None:
        random.setstate(python)
        torch.set_rng_state(cpu)
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)
        if numpy is not None:
            numpy.random.set_state(numpy_state)

    return restore


@contextmanager
def _untouched(model: nn.Module) -> Iterator[None]:
    state, restore_random = ModelState(model), _random_state()
    is_compiled = any(
        getattr(m, "_compiled_call_impl", None) is not None
        or hasattr(m, "_torchdynamo_orig_callable")
        for m in model.modules()
    )
    eager: Any = torch.compiler.set_stance("force_eager") if is_compiled else nullcontext()
    try:
        with torch.inference_mode(False), torch.no_grad(), eager:
            state.lend_copies()
            yield
    finally:
        state.restore()
        restore_random()


# --- Runs ----------------------------------------------------------------------------------------


class Preflight:
    """Runs of one call on the same inputs, from the same random state.

    Args:
        call: the function that the user called, for messages.
        example_inputs: a tuple of the model's arguments, or a dict of keyword arguments.
    """

    def __init__(self, call: str, example_inputs: Any) -> None:
        self.call = call
        self._args, self._kwargs = check_example_inputs(call, example_inputs)

    def _run(self, model: nn.Module) -> Any:
        memo: dict[int, Tensor] = {}
        args, kwargs = _clone_nested((self._args, self._kwargs), memo)
        return model(*args, **kwargs)

    def record(self, model: nn.Module, tree: ModuleTree, members: set[int]) -> tuple[Record, Any]:
        """Run `model` and record its calls; also returns its output.

        Raises whatever the model raises, with a note that says who ran it.
        """
        self._refuse_lazy(model)
        with _untouched(model):
            recorder = CallRecorder(tree, members)
            with recorder:
                output = self._run_noting(model)
                return recorder.record(output), output

    def output(self, model: nn.Module) -> Any:
        """As `record`, without recording."""
        self._refuse_lazy(model)
        with _untouched(model):
            return self._run_noting(model)

    def _refuse_lazy(self, model: nn.Module) -> None:
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if isinstance(tensor, (UninitializedParameter, UninitializedBuffer)):
                raise FusionError(
                    f"{self.call}: '{name}' must be initialized, got a lazy module: run one "
                    "forward of the model first"
                )

    def _run_noting(self, model: nn.Module) -> Any:
        try:
            return self._run(model)
        except Exception as error:
            error.add_note(f"{self.call} ran the model on 'example_inputs'")
            raise

    def difference(self, fused: nn.Module, expected: Any) -> str | None:
        """Run the fused model; says where its output differs from `expected`, or what it raised."""
        with _untouched(fused):
            try:
                output = self._run(fused)
            except Exception as error:
                return f"the fused model raises {type(error).__name__}: {error}"
        return _difference(expected, output, "its output")


def _difference(before: Any, after: Any, where: str) -> str | None:
    if isinstance(before, Tensor):
        return _tensor_difference(before, after, where)
    if isinstance(before, dict):
        if not isinstance(after, dict) or list(before) != list(after):
            return f"{where} has other keys than before"
        pairs = [(before[k], after[k], f"{where}[{k!r}]") for k in before]
    elif isinstance(before, (tuple, list)):
        if not isinstance(after, (tuple, list)) or len(before) != len(after):
            return f"{where} has another length than before"
        pairs = [
            (a, b, f"{where}[{i}]") for i, (a, b) in enumerate(zip(before, after, strict=True))
        ]
    else:
        one, other = list(tensors_in(before)), list(tensors_in(after))
        if len(one) != len(other):
            return f"{where} holds another number of tensors than before"
        pairs = [(a, b, where) for a, b in zip(one, other, strict=True)]
    return next((text for text in (_difference(*pair) for pair in pairs) if text), None)


def _tensor_difference(before: Tensor, after: Any, where: str) -> str | None:
    if not isinstance(after, Tensor) or before.shape != after.shape or before.dtype != after.dtype:
        got = f"{after.dtype} {list(after.shape)}" if isinstance(after, Tensor) else repr(after)
        return f"{where} was {before.dtype} {list(before.shape)} and is {got}"
    if before.is_meta or before.layout != torch.strided:
        return None
    if before.is_complex():
        before, after = torch.view_as_real(before), torch.view_as_real(after)
    if not before.is_floating_point():
        return None if torch.equal(before, after) else f"{where} differs"
    a, b = before.double(), after.double()
    if not torch.equal(a.isfinite(), b.isfinite()):
        return f"{where} is finite in other places than before"
    a, b = (t.nan_to_num(0.0, 0.0, 0.0) for t in (a, b))
    allowed = _TOLERANCE.get(before.dtype, 2e-1)
    norm = float(a.norm())
    error = float((a - b).norm()) / norm if norm else float(b.norm())
    if error <= allowed:
        return None
    return f"{where} differs by {error:.2g} of its norm (rounding explains {allowed:g})"
