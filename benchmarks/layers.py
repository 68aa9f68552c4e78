"""Each int8 layer by itself, next to the float layers that it replaces."""

from __future__ import annotations

from typing import Any

import torch
from common import interleave, table
from torch import Tensor, nn

from horizon_plugin.nn._pending import _linked, execution_context, link_of, version_of
from horizon_plugin.quantization import carry


def _leaves(model: nn.Module) -> dict[str, nn.Module]:
    return {
        name: m
        for name, m in model.named_modules()
        if name and not any(m.children()) and not isinstance(m, nn.Identity)
    }


def _renewed(x: Any) -> Any:
    """A pending convolution, which one call uses up, for another call."""
    link = link_of(x)
    if link is None:
        return x
    source = link.source
    if torch.is_grad_enabled():
        source = source.detach().requires_grad_()
    now = {"version": version_of(source), "context": execution_context()}
    return _linked(link._replace(source=source, **now))


def _record(model: nn.Module, x: Tensor) -> dict[str, tuple[Any, Any]]:
    """The arguments of each leaf's call, in the order of the calls, by name.

    A fused add is called through its method `add`, which hooks do not see. It computes the
    convolution whose pending result it takes.
    """
    seen: dict[str, tuple[Any, Any]] = {}
    undo = []
    for name, module in _leaves(model).items():
        for method in ("forward", "add", "add_relu", "mul", "cat"):
            original = getattr(module, method, None)
            if original is None:
                continue

            def watch(*args: Any, _call: Any = original, _name: str = name, **kwargs: Any) -> Any:
                result = _call(*args, **kwargs)
                seen.setdefault(_name, (_call, args))
                return result

            module.__dict__[method] = watch
            undo.append((module, method))
    try:
        with torch.no_grad():
            model(x)
    finally:
        for module, method in undo:
            del module.__dict__[method]
    return seen


def _size(args: Any) -> str:
    first = args[0][0] if isinstance(args[0], (list, tuple)) else args[0]
    with torch._C.DisableTorchFunction():  # a convolution pending for its add has no size to show
        return "x".join(map(str, first.shape)) if isinstance(first, Tensor) else ""


def _there_and_back(call: Any, args: Any) -> Any:
    """A layer's forward and backward pass, with gradients for what it is given."""

    def leaf(x: Any) -> Any:
        if link_of(x) is not None or not isinstance(x, Tensor):
            return [leaf(item) for item in x] if isinstance(x, list) else x
        return x.detach().requires_grad_() if x.is_floating_point() else x

    given = [leaf(x) for x in args]
    gradient: list[Tensor] = []

    def run() -> None:
        y = call(*map(_renewed, given))
        if not gradient:
            gradient.append(torch.ones_like(y))
        if y.requires_grad:
            y.backward(gradient[0])

    return run


def training_layer_table(prepared: nn.Module, model: nn.Module, x: Tensor, rounds: int) -> str:
    """Forward and backward pass of the layers of both models in training, slowest first."""
    parts = []
    for title, stage in (("QAT layers", prepared), ("float layers", model)):
        for module in stage.modules():
            if hasattr(module, "inplace"):
                module.inplace = False  # a layer by itself is given leaves
        with carry():
            seen = _record(stage, x)
            calls = {name: _there_and_back(*found) for name, found in seen.items()}
            parts.append(_times_table(title, seen, interleave(calls, rounds, 0.002)))
    return "\n".join(parts)


def _times_table(title: str, seen: dict[str, Any], times: dict[str, float]) -> str:
    total = sum(times.values())
    rows = [
        (n, _size(seen[n][1]), f"{t * 1e6:.1f}", f"{100 * t / total:.1f}")
        for n, t in sorted(times.items(), key=lambda item: -item[1])
    ]
    rows.append(("all", "", f"{total * 1e6:.0f}", "100"))
    return table(title, ("", "input", "us", "%"), rows)


def layer_table(int8: nn.Module, model: nn.Module, x: Tensor, rounds: int) -> str:
    """A table of the int8 model's layers and of the float model's, slowest first.

    The layers are called from Python, so the smallest figures are overhead.
    """
    parts = []
    for title, stage in (("int8 layers", int8), ("float layers", model)):
        seen = _record(stage, x)
        with torch.inference_mode(), carry():
            times = interleave(
                {n: (lambda c=c, a=a: c(*map(_renewed, a))) for n, (c, a) in seen.items()},
                rounds,
                0.002,
            )
        parts.append(_times_table(title, seen, times))
    return "\n".join(parts)
