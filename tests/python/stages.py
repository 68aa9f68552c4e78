"""Walks a model through its stages, and compares what each computes."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from horizon_plugin.quantization import convert, get_default_qat_qconfig, prepare_qat


def silent_jit(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A TorchScript call without the deprecation warnings that newer releases raise."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        return call(*args, **kwargs)


def trace(model: nn.Module, x: Tensor) -> Any:
    """`torch.jit.trace` without its checks' own reruns, in no_grad mode."""
    with torch.no_grad():
        return silent_jit(torch.jit.trace, model, x, check_trace=False)


def script(model: nn.Module) -> Any:
    """`torch.jit.script`."""
    return silent_jit(torch.jit.script, model)


def reload(scripted: Any) -> Any:
    """Save and load a TorchScript module through memory."""
    buffer = io.BytesIO()
    silent_jit(torch.jit.save, scripted, buffer)
    buffer.seek(0)
    return silent_jit(torch.jit.load, buffer)


def train_steps(model: nn.Module, x: Tensor, steps: int = 3) -> None:
    """A few optimizer steps on noise, so that ranges, statistics and weights move."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model.train()
    for _ in range(steps):
        y = model(x + 0.1 * torch.randn_like(x))
        optimizer.zero_grad()
        y.square().mean().backward()
        optimizer.step()


def prepared(model: nn.Module, x: Tensor, backend: str = "", steps: int = 3) -> nn.Module:
    """Prepare a fused model and train it a little; returned in eval mode."""
    model.qconfig = get_default_qat_qconfig(backend=backend)
    model = prepare_qat(model, inplace=True)
    train_steps(model, x, steps)
    return model.eval()


def later_stages(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Outputs of everything that must equal the prepared model in eval mode to the bit."""
    with torch.no_grad():
        outputs = {"prepared": model(x)}
        int8 = convert(model)
        outputs["converted"] = int8(x)
        outputs["converted copy"] = copy.deepcopy(int8)(x)
        outputs["converted pickle"] = pickle.loads(pickle.dumps(int8))(x)
        outputs["prepared pickle"] = pickle.loads(pickle.dumps(model))(x)
        for name, stage in (("prepared", model), ("converted", int8)):
            traced = trace(stage, x)
            outputs[f"{name} traced"] = traced(x)
            outputs[f"{name} traced, reloaded"] = reload(traced)(x)
            scripted = script(stage)
            outputs[f"{name} scripted"] = scripted(x)
            outputs[f"{name} scripted, reloaded"] = reload(scripted)(x)
    outputs["prepared with grad"] = model(x).detach()
    return outputs


def assert_all_equal(outputs: dict[str, Tensor]) -> None:
    """Every output equals the prepared model's to the bit, and is not trivial."""
    reference = outputs["prepared"]
    assert torch.isfinite(reference).all()
    assert reference.numel() == 0 or reference.unique().numel() > 3
    different = {
        name: (y != reference).sum().item()
        for name, y in outputs.items()
        if y.shape != reference.shape or not torch.equal(y, reference)
    }
    assert different == {}
