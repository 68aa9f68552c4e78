"""`prepare_qat`: put quantizers into a fused model."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from horizon_plugin import _carry
from horizon_plugin._traced import copy_model
from horizon_plugin.nn import _layer
from horizon_plugin.nn._island import PreparedIsland
from horizon_plugin.quantization import _modules
from horizon_plugin.quantization.fake_quantize import FakeQuantize, WeightFakeQuantize
from horizon_plugin.quantization.qconfig import QConfig

_WEIGHTED = (nn.Conv2d, nn.ConvTranspose2d, nn.Linear)


def _qconfigs(model: nn.Module) -> dict[int, Any]:
    """Module id -> the qconfig it has or inherits."""
    found: dict[int, Any] = {}

    def walk(module: nn.Module, inherited: Any) -> None:
        if id(module) in found:
            return
        mine = module.__dict__.get("qconfig", inherited)
        found[id(module)] = mine
        for child in module.children():
            walk(child, mine)

    walk(model, None)
    return found


def _check_qconfig(path: str, qconfig: Any) -> None:
    ok = hasattr(qconfig, "activation") and hasattr(qconfig, "weight")
    if not ok:
        raise TypeError(
            f"prepare_qat: {path or 'the model'}: 'qconfig' must be a QConfig or None, got "
            f"{type(qconfig).__name__}"
        )
    if isinstance(qconfig, QConfig):
        _check_factory(path, "activation", qconfig.activation, FakeQuantize)
        _check_factory(path, "weight", qconfig.weight, WeightFakeQuantize)
    else:
        raise TypeError(
            f"prepare_qat: {path or 'the model'}: 'qconfig' must be a horizon QConfig "
            f"(get_default_qat_qconfig()), got {type(qconfig).__module__}."
            f"{type(qconfig).__qualname__}"
        )


def _check_factory(path: str, name: str, factory: Any, kind: type) -> None:
    if factory is None:
        return
    rule = f"'qconfig.{name}' must be a factory of {kind.__name__} (such as {kind.__name__}"
    rule += f".with_args(…)) or None, got {factory!r}"
    if not callable(factory) or isinstance(factory, nn.Module):
        raise TypeError(f"prepare_qat: {path or 'the model'}: {rule}")
    if not isinstance(factory(), kind):
        raise TypeError(f"prepare_qat: {path or 'the model'}: {rule}")


def check_mapping(call: str, mapping: Any, method: str) -> dict[Any, Any]:
    """Refuse a `mapping` that does not lead from classes to classes with `method`."""
    if mapping is None:
        return {}
    if not isinstance(mapping, dict):
        raise TypeError(f"{call}: 'mapping' must be a dict, got {type(mapping).__name__}")
    for key, value in mapping.items():
        if not isinstance(key, type) or not hasattr(value, method):
            raise TypeError(
                f"{call}: 'mapping' must lead from module classes to classes with a method "
                f"{method}, got {key!r}: {value!r}"
            )
    return mapping


def check_weight(call: str, path: str, module: nn.Module) -> None:
    """Refuse a weight that is recomputed from others, lazy, or not floating-point."""
    if getattr(module, "parametrizations", None) is not None or hasattr(module, "weight_g"):
        raise ValueError(
            f"{call}: {path}: its weight is computed by a parametrization (weight norm, …): "
            "remove it first (torch.nn.utils.parametrize.remove_parametrizations or "
            "torch.nn.utils.remove_weight_norm)"
        )
    if hasattr(module, "weight_orig") or hasattr(module, "weight_mask"):
        raise ValueError(
            f"{call}: {path}: its weight is pruned or spectrally normalized: make that "
            "permanent first (torch.nn.utils.prune.remove)"
        )
    weight = module._parameters.get("weight")
    if isinstance(weight, UninitializedParameter):
        raise ValueError(
            f"{call}: {path}: its weight is not initialized (a lazy module): run one forward "
            "of the float model first"
        )
    if weight is not None and not weight.is_floating_point():
        raise TypeError(f"{call}: {path}: 'weight' must be floating-point, got {weight.dtype}")


def _replacement(path: str, module: nn.Module, qconfig: Any, mapping: dict[Any, Any]) -> Any:
    cls = mapping.get(type(module)) or _modules.prepared_class(module)
    if cls is None:
        # Parametrized and lazy layers are classes of their own: leaving them float says nothing.
        if qconfig is not None and isinstance(module, _WEIGHTED):
            check_weight("prepare_qat", path, module)
        return None
    is_dequant = cls.__name__ == "PreparedDeQuantStub"
    if qconfig is None and not is_dequant:
        return None
    if not is_dequant:
        _check_qconfig(path, qconfig)
    if _modules.needs_weight(cls):
        if qconfig.weight is None:
            return None
        check_weight("prepare_qat", path, module)
    return cls.from_float(module, qconfig, path)


def _replacements(model: nn.Module, mapping: dict[Any, Any]) -> list[tuple[Any, str, Any, Any]]:
    """Every place whose module changes: parent, name, the module there, its replacement."""
    qconfigs = _qconfigs(model)
    islands = _modules.islands(model, qconfigs)
    floats = {
        id(inner)
        for module in model.modules()
        if id(module) in islands
        for inner in module.modules()
    }
    replacements: dict[int, nn.Module | None] = {}
    places = []
    for parent, name, path, child in _modules.slots(model):
        if id(parent) in floats:
            continue
        if id(child) in islands and id(child) not in replacements:
            _check_qconfig(path, islands[id(child)])
            replacements[id(child)] = PreparedIsland.from_float(child, islands[id(child)], path)
        elif id(child) not in replacements:
            replacements[id(child)] = _replacement(path, child, qconfigs[id(child)], mapping)
        new = replacements[id(child)]
        if new is not None:
            places.append((parent, name, child, new))
    return places


def prepare_qat(
    model: nn.Module,
    mapping: dict[type[nn.Module], Any] | None = None,
    inplace: bool = False,
    *,
    example_inputs: tuple[Any, ...] | None = None,
) -> nn.Module:
    """Swap the modules of a float model for quantization-aware ones.

    Every module with a qconfig (its own or inherited) that has a quantized form is replaced by one
    that shares its parameters and buffers. One whose qconfig is None inside a quantized part
    becomes a *float island*: it runs in float on the real values of its operands, and its result
    is quantized where a quantized layer takes it, and only there. Nothing is run: quantizers get
    their buffers in final shape, ranges are observed in training. `report` lists what was done.

    Args:
        model: a float model, usually after `fuse_modules`, with ``model.qconfig`` set.
        mapping: float class -> class with ``from_float(module, qconfig, path)``, added to ours.
        inplace: change `model` itself and return it; otherwise a deep copy.
        example_inputs: if given, one forward in eval mode records where each operand comes from,
            so that `report` can name unquantized inputs; ranges and statistics do not move.

    Raises:
        ValueError, TypeError: see the messages; the model is unchanged then.
    """
    _modules.check_model("prepare_qat", model)
    mapping = check_mapping("prepare_qat", mapping, "from_float")
    if example_inputs is not None and not isinstance(example_inputs, (tuple, list)):
        raise TypeError(
            "prepare_qat: 'example_inputs' must be a tuple of the model's arguments, got "
            f"{type(example_inputs).__name__}"
        )
    if _carry.is_root(model) or any(isinstance(m, _layer.Layer) for m in model.modules()):
        raise ValueError("prepare_qat: 'model' must be a float model, got one already prepared")
    if _modules.prepared_class(model) is not None:
        raise ValueError(
            f"prepare_qat: 'model' must contain the layers, got a single {type(model).__name__}: "
            "wrap it in nn.Sequential(QuantStub(), layer, DeQuantStub())"
        )
    if all(q is None for q in _qconfigs(model).values()):
        raise ValueError(
            "prepare_qat: 'model' must have a qconfig, got none on any module: set "
            "model.qconfig = horizon_plugin.quantization.get_default_qat_qconfig()"
        )
    if not inplace:
        model = copy_model(model)

    places = _replacements(model, mapping)
    for parent, name, _, new in places:
        parent._modules[name] = new
    float_class = type(model)
    _carry.make_root(model)
    if example_inputs is not None:
        training = {id(m): m.training for m in model.modules()}
        model.eval()
        try:
            with torch.no_grad():
                model(*example_inputs)
        except Exception:
            model.__class__ = float_class
            for parent, name, child, _ in places:
                parent._modules[name] = child
            raise
        finally:
            for module in model.modules():
                module.training = training.get(id(module), module.training)
    return model
