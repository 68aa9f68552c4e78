"""Which modules are quantized, and how; shared by prepare, convert and report."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from horizon_plugin.nn import (
    _family,
    _island,
    _layer,
    _passing,
    _tables,
    _unary,
    intrinsic,
    qat,
    quantized,
)
from horizon_plugin.nn._pending import Placeholder
from horizon_plugin.quantization import float_functional, stubs

# Modules that keep the grid: what they do to floats on a grid they do to codes.
PASSING: tuple[type[nn.Module], ...] = (
    nn.Identity,
    nn.Flatten,
    nn.Unflatten,
    nn.Dropout,
    nn.Dropout2d,
    nn.MaxPool2d,
    nn.AdaptiveMaxPool2d,
    nn.ReLU,
    nn.PixelShuffle,
    nn.PixelUnshuffle,
    nn.ChannelShuffle,
    nn.ZeroPad2d,
    nn.ReflectionPad2d,
    nn.ReplicationPad2d,
    nn.CircularPad2d,
    nn.UpsamplingNearest2d,
)

_PREPARED: dict[type[nn.Module], Any] = {
    nn.Conv2d: qat.FAMILY[_family.Variant(_family.BASE_CONV2D, False, False, 0)],
    nn.ConvTranspose2d: qat.FAMILY[_family.Variant(_family.BASE_CONV_TRANSPOSE2D, False, False, 0)],
    nn.Linear: qat.FAMILY[_family.Variant(_family.BASE_LINEAR, False, False, 0)],
    nn.BatchNorm1d: _unary.PreparedBatchNorm1d,
    nn.BatchNorm2d: _unary.PreparedBatchNorm2d,
    **_tables.PREPARED,
    nn.ReLU6: _unary.PreparedReLU6,
    nn.AvgPool2d: _unary.PreparedAvgPool2d,
    nn.AdaptiveAvgPool2d: _unary.PreparedAdaptiveAvgPool2d,
    nn.UpsamplingBilinear2d: _unary.PreparedUpsample,
    float_functional.FloatFunctional: float_functional.PreparedFloatFunctional,
    stubs.QuantStub: stubs.PreparedQuantStub,
    stubs.DeQuantStub: stubs.PreparedDeQuantStub,
    **{cls: qat.FAMILY[variant] for variant, cls in intrinsic.FAMILY.items()},
}

# torch's own stubs, recognized by name: torch.ao is never imported here.
_TORCH_STUBS = {
    "QuantStub": stubs.PreparedQuantStub,
    "DeQuantStub": stubs.PreparedDeQuantStub,
    "FloatFunctional": float_functional.PreparedFloatFunctional,
}

_CONVERTED: dict[type[nn.Module], Any] = {
    _island.PreparedIsland: _island.ConvertedIsland,
    _island.ScriptablePreparedIsland: _island.ConvertedIsland,
    _unary.PreparedBatchNorm1d: _unary.ConvertedBatchNorm1d,
    _unary.PreparedBatchNorm2d: _unary.ConvertedBatchNorm2d,
    **{_tables.PREPARED[cls]: _tables.CONVERTED[cls] for cls in _tables.PREPARED},
    _unary.PreparedReLU6: _unary.ConvertedReLU6,
    _unary.PreparedAvgPool2d: _unary.ConvertedAvgPool2d,
    _unary.PreparedAdaptiveAvgPool2d: _unary.ConvertedAdaptiveAvgPool2d,
    _unary.PreparedUpsample: _unary.ConvertedUpsample,
    float_functional.PreparedFloatFunctional: float_functional.ConvertedFloatFunctional,
    stubs.PreparedQuantStub: stubs.ConvertedQuantStub,
    stubs.PreparedDeQuantStub: stubs.ConvertedDeQuantStub,
    **{cls: quantized.FAMILY[variant] for variant, cls in qat.FAMILY.items()},
}

_PASSING_ON_CODES: dict[type[nn.Module], Any] = {
    nn.ReLU: _passing.ConvertedReLU,
    nn.MaxPool2d: _passing.ConvertedMaxPool2d,
    nn.AdaptiveMaxPool2d: _passing.ConvertedAdaptiveMaxPool2d,
}


def is_passing(module: nn.Module) -> bool:
    """Whether the module keeps the grid of its input."""
    if type(module) is nn.Upsample:
        return module.mode in ("nearest", "nearest-exact")
    if type(module) is nn.Sequential and len(module) == 0:
        return True
    return type(module) in PASSING or isinstance(module, Placeholder)


def prepared_class(module: nn.Module) -> Any:
    """The prepared class for a float module, or None."""
    cls = type(module)
    if cls is nn.Hardtanh and (module.min_val, module.max_val) == (0, 6):
        return _unary.PreparedReLU6
    if cls is nn.Upsample:
        return None if is_passing(module) else _unary.PreparedUpsample
    if cls.__module__.startswith("torch.ao."):
        return _TORCH_STUBS.get(cls.__name__)
    return _PREPARED.get(cls)


def converted_class(module: nn.Module) -> Any:
    """The converted class for a prepared module, or None."""
    return _CONVERTED.get(type(module))


def passing_class(module: nn.Module) -> Any:
    """The converted class of a grid-keeping module that needs a form of its own, or None."""
    if getattr(module, "return_indices", False):
        return None
    return _PASSING_ON_CODES.get(type(module))


# Called through their methods, or through none.
_NOT_CALLED = (nn.ModuleList, nn.ModuleDict, float_functional.FloatFunctional)


def can_be_island(module: nn.Module) -> bool:
    """Whether a module can run in float between quantized ones: it computes, and is called."""
    if isinstance(module, (*_NOT_CALLED, stubs.QuantStub, stubs.DeQuantStub)):
        return False
    if type(module).__module__.startswith("torch.ao.") or getattr(module, "has_add", False):
        return False
    return not is_passing(module)


def islands(model: nn.Module, qconfigs: dict[int, Any]) -> dict[int, Any]:
    """Id of each topmost module without a qconfig among quantized ones -> the qconfig around it.

    A module that holds a quantized one, or cannot be an island, is searched for smaller ones.
    """
    found: dict[int, Any] = {}
    seen: set[int] = set()

    def walk(module: nn.Module, around: Any) -> None:
        if id(module) in seen or id(module) in found:
            return
        seen.add(id(module))
        for child in module.children():
            mine = qconfigs[id(child)]
            inside = [qconfigs[id(m)] for m in child.modules()]
            if mine is not None or around is None:
                walk(child, mine)
            elif can_be_island(child) and all(q is None for q in inside):
                found[id(child)] = around
            else:
                walk(child, around)

    walk(model, qconfigs[id(model)])
    return found


def needs_weight(cls: Any) -> bool:
    """Whether modules of this prepared class quantize a weight."""
    return hasattr(cls, "variant")


def layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Modules in order, without the insides of fused, prepared and converted ones; no aliases."""
    seen: set[int] = set()

    def walk(module: nn.Module, path: str) -> Iterator[tuple[str, nn.Module]]:
        if id(module) in seen:
            return
        seen.add(id(module))
        yield path, module
        if isinstance(module, _layer.Layer) or type(module) in _PREPARED:
            return
        for name, child in module.named_children():
            yield from walk(child, f"{path}.{name}" if path else name)

    yield from walk(model, "")


def producers(model: nn.Module) -> set[str]:
    """Names of the modules whose quantized results other modules took so far."""
    taken = (m._producers for m in model.modules() if isinstance(m, _layer.Layer))
    return {name for operands in taken for names in operands.values() for name in names}


def slots(model: nn.Module) -> Iterator[tuple[nn.Module, str, str, nn.Module]]:
    """Every place where a module sits: parent, name, path, child; aliases included."""
    seen: set[int] = {id(model)}
    queue: list[tuple[nn.Module, str]] = [(model, "")]
    while queue:
        parent, prefix = queue.pop(0)
        for name, child in parent._modules.items():
            if child is None:
                continue
            path = f"{prefix}.{name}" if prefix else name
            yield parent, name, path, child
            inside = not isinstance(child, _layer.Layer) and type(child) not in _PREPARED
            if id(child) not in seen and inside:
                queue.append((child, path))
            seen.add(id(child))


def check_model(call: str, model: Any) -> None:
    """Refuse what cannot be walked: not a module, a wrapper, a script."""
    import torch

    if not isinstance(model, nn.Module):
        raise TypeError(f"{call}: 'model' must be an nn.Module, got {type(model).__name__}")
    if isinstance(model, torch.jit.ScriptModule):
        raise TypeError(
            f"{call}: 'model' must be an eager nn.Module, got a TorchScript module: call it "
            "before torch.jit.script or torch.jit.trace"
        )
    if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        raise ValueError(
            f"{call}: 'model' must be the inner module, got {type(model).__name__}: "
            "pass model.module, and wrap the result"
        )
