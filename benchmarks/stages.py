"""A float model's later stages, with ranges observed on random images."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from horizon_plugin.quantization import (
    convert,
    fuse_modules,
    get_default_qat_out_qconfig,
    get_default_qat_qconfig,
    prepare_qat,
)


def settle(model: nn.Module, x: Tensor) -> nn.Module:
    """A float model in eval mode whose batch norms have seen images, so that values stay sane."""
    model.train()
    with torch.no_grad():
        for _ in range(3):
            model(x)
    return model.eval()


def prepared(model: Any, x: Tensor, backend: str = "") -> nn.Module:
    """The prepared form after two forwards in training mode; `model` is left as it is."""
    model = copy.deepcopy(model).train()
    fuse_modules(model, model.groups(), inplace=True)
    model.qconfig = get_default_qat_qconfig(backend=backend)
    *_, head = (m for m in model.modules() if isinstance(m, (nn.Linear, nn.Conv2d)))
    head.qconfig = get_default_qat_out_qconfig(backend=backend)
    prepare_qat(model, inplace=True)
    with torch.no_grad():
        for _ in range(2):
            model(x)
    return model.eval()


def converted(model: Any, x: Tensor) -> nn.Module:
    """The int8 form; `model` is left as it is."""
    model = prepared(model, x)
    with torch.no_grad():
        model(x)
        return convert(model, inplace=True)


def silent(call: Callable[..., Any], *args: Any) -> Any:
    """A TorchScript call without its deprecation warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        return call(*args)


def traced(model: nn.Module, x: Tensor, freeze: bool = False) -> Any:
    """The trace, frozen or not."""
    with torch.no_grad():
        trace = silent(torch.jit.trace, model, x)
        return silent(torch.jit.freeze, trace) if freeze else trace


def file_bytes(trace: Any) -> int:
    """Size of the TorchScript file."""
    buffer = io.BytesIO()
    silent(torch.jit.save, trace, buffer)
    return buffer.getbuffer().nbytes


def memory_bytes(model: nn.Module) -> int:
    """Bytes of every tensor that the model's modules hold: parameters, buffers and attributes."""
    storages = {}
    for module in model.modules():
        groups = (module._parameters, module._buffers, module.__dict__)
        for value in (v for group in groups for v in group.values()):
            for tensor in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(tensor, Tensor):
                    storage = tensor.untyped_storage()
                    storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())
